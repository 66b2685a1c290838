"""Layers as they were measured on a device: `LayerSeconds` from a profile.

    forward     tokens(n) + pairs(p)
    backward    the same of what training takes beyond; its own curves with recomputation
    prefill     tokens(n) + pairs(p) of the generation engine
    decode      sequences(a) + cached(C) of a block; of the head whatever else a step takes, minus
                what `Hardware.engine_step_seconds` stands for

All curves are piecewise linear and never fall. What was not measured is refused: seconds of other
widths do not follow from these by scaling (kernels of a narrow block are limited by memory and
launches, those of a wide one by FLOP/s). Sequence parallelism was not measured: norms count as if
each rank computed all tokens.

A profile cannot tell FLOP/s from bandwidth. Blocks of passes count as computing, those of decoding
and embeddings as memory, the rest of a decoding step as launches.
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
    """Of the model."""
    by_tensor: Mapping[int, ModelProfile]
    """What was measured of it, by ranks that share a layer."""
    engine_step_seconds: float
    """What the hardware already counts for each step of an engine."""

    def forward(self, kind: LayerKind, cut: LayerCut, tokens: float, pairs: float) -> LayerTime:
        """As the protocol says."""
        return _pass(self._training(cut).forward, kind, tokens, pairs)

    def backward(
        self, kind: LayerKind, cut: LayerCut, tokens: float, pairs: float, recompute: bool
    ) -> LayerTime:
        """As the protocol says, with what keeping activations adds to the forward pass."""
        training = self._training(cut)
        found = training.recomputed if recompute else training.backward
        return _pass(found, kind, tokens, pairs)

    def optimizer(self, num_parameters: float) -> float:
        """As the protocol says."""
        for measured in self.by_tensor.values():
            if measured.training is not None:
                return measured.training.optimizer(num_parameters)
        raise self._lacking("training", min(self.by_tensor))

    def prefill(self, kind: LayerKind, cut: LayerCut, tokens: float, pairs: float) -> LayerTime:
        """As the protocol says."""
        curves = self._generation(cut)
        if kind is LayerKind.BLOCK:
            return LayerTime(compute=curves.prefill(tokens, pairs))
        if kind is LayerKind.EMBEDDING:
            return LayerTime(memory=curves.embedding(tokens))
        return self.decode(kind, cut, tokens, 0.0)

    def decode(
        self, kind: LayerKind, cut: LayerCut, sequences: float, cached_tokens: float
    ) -> LayerTime:
        """As the protocol says; the head's with the embedding, and all that a step takes beyond
        `Hardware.engine_step_seconds`."""
        curves = self._generation(cut)
        if kind is LayerKind.BLOCK:
            return LayerTime(memory=curves.sequences(sequences) + curves.cached(cached_tokens))
        if kind is LayerKind.EMBEDDING:
            return LayerTime()
        return LayerTime(launch=max(0.0, curves.step(sequences) - self.engine_step_seconds))

    def _training(self, cut: LayerCut) -> TrainingCurves:
        found = self._of(cut).training
        if found is None:
            raise self._lacking("training and inference", cut.tensor)
        return found

    def _generation(self, cut: LayerCut) -> GenerationCurves:
        found = self._of(cut).generation
        if found is None:
            raise self._lacking("generation", cut.tensor)
        return found

    def _of(self, cut: LayerCut) -> ModelProfile:
        if cut.tensor not in self.by_tensor:
            raise self._lacking("layers", cut.tensor)
        return self.by_tensor[cut.tensor]

    def _lacking(self, what: str, tensor: int) -> ProfileUnusable:
        given = (f"{_measured_of(each)} of tensor {n}" for n, each in self.by_tensor.items())
        return ProfileUnusable(
            f"the profile has not measured this: got {what} of tensor {tensor} of a model "
            f"{self.shape}, allowed {', '.join(given)}; {AGAIN} with a manifest that asks for it"
        )


def _measured_of(model: ModelProfile) -> str:
    parts = (("training", model.training), ("generation", model.generation))
    return " and ".join(name for name, found in parts if found is not None) or "nothing"


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
    """What layers of a model take: as measured, or, without a profile, by data sheets. The same
    object for equal arguments, so that estimates are found again.

    Args:
        shape: of the model.
        precision: of its computation: Float32 or BFloat16.
        hardware: of its devices; with a profile what `hardware_for` makes of it.
        profile: measured on such devices.

    Raises:
        ProfileUnusable: the profile has no such model.
    """
    if profile is None:
        return analytic_layers(hardware, shape, precision)
    wanted = BlockShape.of(shape)
    found = {
        model.tensor: model
        for model in profile.models
        if model.shape == wanted and model.precision is precision
    }
    if not found:
        known = dict.fromkeys(f"{model.shape} in {model.precision}" for model in profile.models)
        raise ProfileUnusable(
            f"the profile does not know a model: got {wanted} in {precision}, allowed "
            f"{'; '.join(known) or 'none: it is empty'}; {AGAIN}"
        )
    return MeasuredLayers(wanted, found, hardware.engine_step_seconds)


@lru_cache(maxsize=1024)
def hardware_for(hardware: Hardware, profile: Profile | None = None) -> Hardware:
    """Hardware with what was measured in place of its constants.

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
    )


@dataclass(frozen=True, eq=False)
class Measurement:
    """A profile that is compared by identity, as its numbers are many."""

    profile: Profile


@dataclass(frozen=True)
class MeasuredHardware(Hardware):
    """Hardware of which layers were measured, too."""

    measurement: Measurement | None = None
    """What was measured; never None."""


def measured_hardware(hardware: Hardware, profile: Profile) -> MeasuredHardware:
    """Hardware with what was measured, of layers, too; arguments and errors as of
    `hardware_for`."""
    measured = hardware_for(hardware, profile)
    values = {field.name: getattr(measured, field.name) for field in fields(Hardware)}
    return MeasuredHardware(**values, measurement=Measurement(profile))


@lru_cache(maxsize=1024)
def layers_of(hardware: Hardware, shape: DecoderShape, precision: Precision) -> LayerSeconds:
    """What layers of a model take on hardware: as measured if it was, else by data sheets.

    Raises:
        ProfileUnusable: it was measured, but not for such a model.
    """
    if isinstance(hardware, MeasuredHardware) and hardware.measurement is not None:
        return layers_for(shape, precision, hardware, hardware.measurement.profile)
    return analytic_layers(hardware, shape, precision)


def require_ranks(profile: Profile, device: Device, devices_per_node: int) -> None:
    """Refuse a profile of ranks that shared their CPU with more or fewer others: each had another
    share of its cores and of its memory's bandwidth.

    Args:
        profile: what was measured.
        device: of the pool that is planned for.
        devices_per_node: of that pool.

    Raises:
        ProfileUnusable: it is of others.
    """
    measured = profile.measured
    if device is Device.CPU and measured.ranks != devices_per_node:
        raise ProfileUnusable(
            f"the profile is of another number of ranks on a CPU: got {measured.ranks} of "
            f"{measured.threads} threads each, allowed {devices_per_node}; measure with `rlhf "
            f"profile FILE --devices {devices_per_node}`"
        )
