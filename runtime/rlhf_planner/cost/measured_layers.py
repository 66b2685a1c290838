"""Measured layers: `LayerSeconds` from a profile.

    forward     tokens(n) + pairs(p)
    backward    the same for the extra time of training; its own curves with recomputation
    prefill     tokens(n) + pairs(p) of the generation engine
    decode      sequences(a) + cached(C) of a block; for the head the rest of a step, minus
                `Hardware.engine_step_seconds`

All curves are piecewise linear and never fall. Shapes that were not measured are refused. A profile
cannot tell FLOP/s from bandwidth: blocks of passes count as computing, those of decoding and
embeddings as memory, the rest of a decoding step as launches.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import lru_cache

from rlhf_api.spec.models import Precision
from rlhf_api.spec.resources import Device
from rlhf_flow.errors import ProfileUnusable
from rlhf_planner.cost.analytic_layers import analytic_layers
from rlhf_planner.cost.hardware import Hardware
from rlhf_planner.cost.layers import LayerCut, LayerKind, LayerSeconds, LayerTime
from rlhf_planner.problem.profile import (
    BlockShape,
    GenerationCurves,
    ModelProfile,
    PassCurves,
    Profile,
    TrainingCurves,
)
from rlhf_sizing.shape import DecoderShape

AGAIN = "measure it: `rlhf profile FILE`"


@dataclass(frozen=True, eq=False)
class MeasuredLayers:
    """`LayerSeconds` from a profile."""

    shape: BlockShape
    """Shape of the model's blocks."""
    by_tensor: Mapping[int, ModelProfile]
    """Profiles of the model, by ranks that share a layer."""
    engine_step_seconds: float
    """Seconds per step of an engine that the hardware already counts."""

    def forward(self, kind: LayerKind, cut: LayerCut, tokens: float, pairs: float) -> LayerTime:
        """See `LayerSeconds`."""
        return _pass(self._training(cut).forward, kind, tokens, pairs)

    def backward(
        self, kind: LayerKind, cut: LayerCut, tokens: float, pairs: float, recompute: bool
    ) -> LayerTime:
        """See `LayerSeconds`; includes what keeping activations adds to the forward pass."""
        training = self._training(cut)
        curves = training.recomputed if recompute else training.backward
        return _pass(curves, kind, tokens, pairs)

    def optimizer(self, num_parameters: float) -> float:
        """See `LayerSeconds`."""
        # Time depends on the rank's parameters only, so a profile of any cut will do.
        for measured in self.by_tensor.values():
            if measured.training is not None:
                return measured.training.optimizer(num_parameters)
        raise self._lacking("training", min(self.by_tensor))

    def prefill(self, kind: LayerKind, cut: LayerCut, tokens: float, pairs: float) -> LayerTime:
        """See `LayerSeconds`."""
        curves = self._generation(cut)
        if kind is LayerKind.BLOCK:
            return LayerTime(compute=curves.prefill(tokens, pairs))
        if kind is LayerKind.EMBEDDING:
            return LayerTime(memory=curves.embedding(tokens))
        return self.decode(kind, cut, tokens, 0.0)

    def decode(
        self, kind: LayerKind, cut: LayerCut, sequences: float, cached_tokens: float
    ) -> LayerTime:
        """See `LayerSeconds`; the head's includes the embedding and the rest of a step."""
        curves = self._generation(cut)
        if kind is LayerKind.BLOCK:
            return LayerTime(memory=curves.sequences(sequences) + curves.cached(cached_tokens))
        if kind is LayerKind.EMBEDDING:
            return LayerTime()
        # `Engine` adds the hardware's seconds per step, which the measured step contains already.
        return LayerTime(launch=max(0.0, curves.step(sequences) - self.engine_step_seconds))

    def _training(self, cut: LayerCut) -> TrainingCurves:
        curves = self._of(cut).training
        if curves is None:
            raise self._lacking("training and inference", cut.tensor)
        return curves

    def _generation(self, cut: LayerCut) -> GenerationCurves:
        curves = self._of(cut).generation
        if curves is None:
            raise self._lacking("generation", cut.tensor)
        return curves

    def _of(self, cut: LayerCut) -> ModelProfile:
        # Sequence parallelism was not measured: norms count as if each rank computed all tokens.
        if cut.tensor not in self.by_tensor:
            raise self._lacking("layers", cut.tensor)
        return self.by_tensor[cut.tensor]

    def _lacking(self, what: str, tensor: int) -> ProfileUnusable:
        measured = (
            f"{_measured_of(model_profile)} of tensor {n}"
            for n, model_profile in self.by_tensor.items()
        )
        return ProfileUnusable(
            f"the profile has not measured this: got {what} of tensor {tensor} of a model "
            f"{self.shape}, allowed {', '.join(measured)}; {AGAIN} with a manifest that asks for it"
        )


def _measured_of(model: ModelProfile) -> str:
    parts = (("training", model.training), ("generation", model.generation))
    return " and ".join(name for name, part in parts if part is not None) or "nothing"


def _pass(curves: PassCurves, kind: LayerKind, tokens: float, pairs: float) -> LayerTime:
    if kind is LayerKind.BLOCK:
        return LayerTime(compute=curves.block(tokens, pairs))
    if kind is LayerKind.HEAD:
        return LayerTime(compute=curves.head(tokens))
    return LayerTime(memory=curves.embedding(tokens))


@lru_cache(maxsize=1024)
def layers_for(
    shape: DecoderShape, precision: Precision, hardware: Hardware, profile: Profile | None = None
) -> LayerSeconds:
    """Times of a model's layers: measured, or, without a profile, by data sheets.

    Args:
        shape: of the model.
        precision: of its computation: Float32 or BFloat16.
        hardware: of its devices; with a profile the result of `hardware_for`.
        profile: measured on such devices.

    Raises:
        ProfileUnusable: the profile has no such model.
    """
    if profile is None:
        return analytic_layers(hardware, shape, precision)
    block_shape = BlockShape.of(shape)
    by_tensor = {
        model.tensor: model
        for model in profile.models
        if model.shape == block_shape and model.precision is precision
    }
    # Times do not scale with widths: kernels of a narrow block are limited by memory and launches,
    # those of a wide one by FLOP/s.
    if not by_tensor:
        measured_models = dict.fromkeys(
            f"{model.shape} in {model.precision}" for model in profile.models
        )
        raise ProfileUnusable(
            f"the profile does not know a model: got {block_shape} in {precision}, allowed "
            f"{'; '.join(measured_models) or 'none: it is empty'}; {AGAIN}"
        )
    return MeasuredLayers(block_shape, by_tensor, hardware.engine_step_seconds)


@lru_cache(maxsize=1024)
def hardware_for(hardware: Hardware, profile: Profile | None = None) -> Hardware:
    """Replace constants of hardware by measured ones.

    Args:
        hardware: by a data sheet.
        profile: measured on such devices. None: nothing is replaced.

    Raises:
        ProfileUnusable: a profile of another kind of device.
    """
    if profile is None:
        return hardware
    if profile.measured.device is not hardware.device:
        raise ProfileUnusable(
            f"the profile is of another kind of device: got {profile.measured.name} "
            f"({profile.measured.device}), allowed {hardware.device} as {hardware.name} is; "
            "plan without a profile, or measure on such a device"
        )
    constants, links = profile.constants, hardware
    if constants.link_bytes_per_second is not None and constants.collective_seconds is not None:
        # Measured rates contain the efficiency and the hops.
        links = replace(
            hardware,
            link_bytes_per_second=constants.link_bytes_per_second,
            link_efficiency=1.0,
            link_latency_seconds=0.0,
            collective_seconds=constants.collective_seconds,
        )
    step = constants.engine_step_seconds
    return replace(
        links,
        name=profile.measured.name,
        memory_bytes_per_second=constants.memory_bytes_per_second,
        memory_efficiency=1.0,
        engine_step_seconds=hardware.engine_step_seconds if step is None else step,
        # The measured steps of the head contain it, for every number of sequences.
        engine_sequence_seconds=0.0,
    )


@dataclass(frozen=True, eq=False)
class Measurement:
    """A profile that is compared by identity."""

    # Its numbers are many, so comparing them would be slow.
    profile: Profile


@dataclass(frozen=True)
class MeasuredHardware(Hardware):
    """Hardware with measured layers."""

    # A default, as the fields before it have some.
    measurement: Measurement | None = None
    """The measurement; never None."""


def measured_hardware(hardware: Hardware, profile: Profile) -> MeasuredHardware:
    """Hardware with measured constants and layers; arguments and errors as for `hardware_for`."""
    measured = hardware_for(hardware, profile)
    values = {field.name: getattr(measured, field.name) for field in fields(Hardware)}
    return MeasuredHardware(**values, measurement=Measurement(profile))


@lru_cache(maxsize=1024)
def layers_of(hardware: Hardware, shape: DecoderShape, precision: Precision) -> LayerSeconds:
    """Times of a model's layers on hardware: measured if it was, else by data sheets.

    Raises:
        ProfileUnusable: it was measured, but not for such a model.
    """
    if isinstance(hardware, MeasuredHardware) and hardware.measurement is not None:
        return layers_for(shape, precision, hardware, hardware.measurement.profile)
    return analytic_layers(hardware, shape, precision)


def require_ranks(profile: Profile, device: Device, devices_per_node: int) -> None:
    """Refuse a profile whose ranks shared their CPU with another number of ranks.

    Args:
        profile: the measurement.
        device: of the planned pool.
        devices_per_node: of that pool.

    Raises:
        ProfileUnusable: another number of ranks.
    """
    # A GPU belongs to one rank, so its times do not depend on the others.
    measured = profile.measured
    if device is Device.CPU and measured.ranks != devices_per_node:
        raise ProfileUnusable(
            f"the profile is of another number of ranks on a CPU: got {measured.ranks} of "
            f"{measured.threads} threads each, allowed {devices_per_node}; measure with `rlhf "
            f"profile FILE --devices {devices_per_node}`"
        )
