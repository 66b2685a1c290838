"""MegatronEngine: trains a decoder with Megatron-core over tensor ranks, stages and replicas."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import pad

from rlhf_api.plan_memory import MemoryUse
from rlhf_runtime.engines.base import EngineBase, ResidentTensors
from rlhf_runtime.engines.heads import check_head, is_classifier
from rlhf_runtime.engines.megatron.files import load_model, overwrite_from_folder, save_model
from rlhf_runtime.engines.megatron.head import HeadRequest, to_token_outputs
from rlhf_runtime.engines.megatron.layout import check_mesh_pieces
from rlhf_runtime.engines.megatron.masters import MasterWeights
from rlhf_runtime.engines.megatron.pipeline import forward_backward, infer, wrap_with_gradients
from rlhf_runtime.engines.megatron.stage import Stage
from rlhf_runtime.engines.megatron.stage_passes import ConsumeOutputs, Inputs
from rlhf_runtime.engines.model_files import read_config
from rlhf_runtime.engines.offloading import Shrunk, device_bytes, distinct_storages, grow, shrink
from rlhf_runtime.engines.optimizer import STEP, Optimizer
from rlhf_runtime.engines.optimizer_settings import OptimizerSettings
from rlhf_runtime.engines.packing import MicroBatch, Packing, empty_micro_batch, pad_batches
from rlhf_runtime.engines.parallel import ParallelContext
from rlhf_runtime.engines.sharing import sequence_cost
from rlhf_runtime.engines.training import (
    Consume,
    HeadReading,
    WeightedLoss,
)
from rlhf_runtime.hooks import Hook, noop
from rlhf_runtime.reshard.gathering import gather_pieces
from rlhf_runtime.reshard.local_shards import LocalShards, local_shards
from rlhf_runtime.reshard.views import Views


@dataclass(frozen=True)
class ShardingOptions:
    """Sharding in addition to the mesh's axes."""

    sequence_parallel: bool = True
    """True if tensor ranks shard the positions of sequences between matrix products."""
    distributed_optimizer: bool = True
    """True if replicas shard master weights and Adam's moments (ZeRO-1)."""


class MegatronEngine(EngineBase):
    """A `TrainingEngine` for models of the families that `engines/megatron/family.py` lists."""

    def __init__(
        self,
        folder: Path,
        parallel: ParallelContext,
        precision: torch.dtype,
        *,
        value_head: bool = False,
        needs_head: bool = False,
        trained: bool = True,
        recompute: bool = False,
        excluded_tokens: tuple[range, ...] = (),
        sharding: ShardingOptions = ShardingOptions(),
        tick: Hook = noop,
    ) -> None:
        """Build the stage, and read this rank's weights. Collective over the mesh.

        Args:
            folder: of the model, in Hugging Face format, with safetensors files.
            parallel: the mesh, as this rank sees it.
            precision: of weights and activations; trained weights also have a float32 copy.
            value_head: True if a scalar head replaces the output projection.
            needs_head: True if the folder must have that head.
            trained: True if weights will change.
            recompute: True to recompute activations in the backward pass.
            excluded_tokens: tokens of probability 0.
            sharding: sharding in addition to the mesh's axes.
            tick: called before each micro-batch, and after the last one.

        Raises:
            UnsupportedModel: an unregistered family, or a mesh that does not divide the model.
            ModelIncomplete: the folder lacks weights.
            WrongHead: the folder has another head than required.
        """
        super().__init__(parallel, tick)
        config = read_config(folder)
        check_head(folder, config, value_head=value_head, needs_head=needs_head)
        self.stage = Stage(
            config,
            parallel,
            value_head=value_head,
            sequence_parallel=sharding.sequence_parallel,
            recompute=recompute and trained,
            excluded_tokens=excluded_tokens,
            dtype=precision,
        )
        self._check_cut(parallel)
        self.stage.requires_grad_(trained)
        self.stage.eval()  # no dropout: log-probabilities must equal the sampler's
        # May move the parameters into buffers: views are valid only from here on.
        sharded = sharding.distributed_optimizer
        self._gradients = wrap_with_gradients(self.stage, sharded=sharded) if trained else None
        self._no_gradients: Shrunk = []
        self._masters = None if self._gradients is None else MasterWeights(self._gradients)
        views, architecture = self.master_views(), self.stage.architecture
        load_model(views, architecture, folder, from_classifier=is_classifier(config))
        # Gradients take memory only during an update.
        self._free_gradients()
        self._write_parameters()

    def _check_cut(self, parallel: ParallelContext) -> None:
        """Check that the ranks of the mesh have the full model together, and nothing twice."""
        check_mesh_pieces(
            self.stage.architecture,
            gather_pieces(self.stage.views(), parallel.group),
            tensor=parallel.at.tensor_size,
            pipeline=parallel.at.pipeline_size,
            data=parallel.at.data_size,
        )

    def use_optimizer(self, settings: OptimizerSettings) -> None:
        """Train with a new optimizer from now on."""
        self.require_loaded()
        assert self._masters is not None, "the model is trained"
        weights, norm = self._masters.weights(), self._masters.gradient_norm
        self._optimizer = Optimizer(weights, settings, norm, self._masters.decayed())

    def packing(self, max_padded_tokens: int) -> Packing:
        """Packing settings for this model's micro-batches."""
        cost = sequence_cost(self.stage.architecture.width, self.parallel.device)
        return Packing(max_padded_tokens, cost, share_prompts=True)

    def _infer(
        self, micro_batches: Sequence[MicroBatch], reading: HeadReading, consume: Consume
    ) -> None:
        rounds = self._rounds(len(micro_batches))
        if rounds:
            parts = list(pad_batches(micro_batches, rounds, empty_micro_batch()))
            infer(
                self.stage,
                self._inputs((part, reading) for part in parts),
                rounds,
                lambda number, result: consume(to_token_outputs(result, reading), parts[number]),
            )
            self._tick()

    def _forward(self, parts: Sequence[tuple[MicroBatch, WeightedLoss]]) -> None:
        if parts:
            infer(self.stage, self._term_inputs(parts), len(parts), _loss_function(parts))

    def _forward_backward(self, parts: Sequence[tuple[MicroBatch, WeightedLoss]]) -> None:
        assert self._masters is not None and self._gradients is not None
        grow(self._no_gradients)
        loss = _loss_function(parts)
        forward_backward(self._gradients, self._term_inputs(parts), len(parts), loss)
        self._tick()
        self._masters.attach_gradients()

    def _free_gradients(self) -> None:
        if self._gradients is not None:
            self._no_gradients += shrink(
                distinct_storages(b.grad_data for b in self._gradients.buffers)
            )

    def views(self) -> Views:
        """This rank's part of every weight, in the format of the computation."""
        self.require_loaded()
        return self.stage.views()

    def state(self) -> dict[str, Any]:
        """Weights, version and optimizer state; its tensors are no copies."""
        # The same keys as FSDP's state, so that either engine continues from the other's.
        return {
            "weights": self._to_save(self.master_views()),
            "version": self.version,
            "optimizer": {} if self._optimizer is None else self._optimizer_state(self._optimizer),
        }

    def expect_state(self, parameters: Collection[str]) -> None:
        """Allocate the optimizer's state of the parameters with these names."""
        if self._optimizer is not None:
            assert self._masters is not None
            masters = self._masters
            paths = [path for path in masters.shards if {*masters.names(path)} & {*parameters}]
            self._optimizer.expect_state(paths)

    def bytes_on_device(self) -> Mapping[MemoryUse, int]:
        """Bytes of weights, gradients and optimizer on this rank's device."""
        weights = device_bytes(self.stage.parameters())
        if self._masters is None or self._gradients is None:
            return {MemoryUse.WEIGHTS: weights}
        gradients = [buffer.grad_data for buffer in self._gradients.buffers]
        sizes = {MemoryUse.GRADIENTS: device_bytes(gradients)}
        if self._masters.share_storage:
            sizes[MemoryUse.MASTER_WEIGHTS] = weights
        else:
            sizes[MemoryUse.WEIGHTS] = weights
            sizes[MemoryUse.MASTER_WEIGHTS] = device_bytes(self._masters.weights().values())
        if self._optimizer is not None:
            sizes[MemoryUse.OPTIMIZER] = device_bytes(self._optimizer.tensors())
        return sizes

    def load_weights(self, folder: Path) -> None:
        """Copy the weights of a saved model, by name. Collective."""
        overwrite_from_folder(self.master_views(), self.stage.architecture, folder)
        self._weights_changed()

    def save(self, folder: Path, dtype: torch.dtype) -> None:
        """Write the model in Hugging Face format. Collective."""
        save_model(self.stage, self.master_views(), folder, dtype)

    def master_views(self) -> Views:
        """This rank's part of every trained weight, in float32; of frozen ones `views`."""
        self.require_loaded()
        if self._masters is None:
            return self.stage.views()
        return self._masters.views(self._masters.weights())

    def _optimizer_state(self, optimizer: Optimizer) -> dict[str, Any]:
        """The optimizer's state by Hugging Face name."""
        # Adam counts steps per Megatron parameter: all weights in it get the same number.
        assert self._masters is not None
        states, adam = optimizer.moments(), dict[str, dict[str, torch.Tensor]]()
        for kind in {kind for state in states.values() for kind in state} - {STEP}:
            flat = {path: state[kind] for path, state in states.items()}
            for name, shards in self._to_save(self._masters.views(flat)).items():
                adam.setdefault(name, {})[kind] = shards
        for path, state in states.items():
            for name in adam.keys() & self._masters.names(path):
                adam[name][STEP] = state[STEP]
        return {"adam": adam, "updates": optimizer.updates}

    def _to_save(self, views: Views) -> dict[str, LocalShards]:
        shapes = self.stage.architecture.shapes()
        return local_shards(views, shapes, self.parallel.rank, self.stage.copies)

    def _write_parameters(self) -> None:
        if self._masters is not None:
            self._masters.write_parameters()

    def _resident_tensors(self) -> ResidentTensors:
        parameters = list(self.stage.parameters())
        if self._masters is None or self._gradients is None:
            return ResidentTensors(parameters)
        kept = [*self._masters.weights().values()]
        if self._optimizer is not None:
            kept += self._optimizer.tensors()
        if self._masters.share_storage:
            return ResidentTensors([*parameters, *kept])
        return ResidentTensors(kept, parameters)

    def _term_inputs(self, parts: Iterable[tuple[MicroBatch, WeightedLoss]]) -> Iterator[Inputs]:
        return self._inputs((part, term.reading) for part, term in parts)

    def _inputs(self, parts: Iterable[tuple[MicroBatch, HeadReading]]) -> Iterator[Inputs]:
        """Inputs of micro-batches, created when the schedule asks for them."""
        # Lazily: so few micro-batches are on the device, and ticks follow the progress.
        multiple = self.parallel.at.tensor_size if self.stage.config.sequence_parallel else 1
        for part, reading in parts:
            self._tick()
            yield _as_inputs(part.to(self.parallel.device), reading, multiple)


def _loss_function(parts: Sequence[tuple[MicroBatch, WeightedLoss]]) -> ConsumeOutputs:
    """Computes the loss of micro-batch `number` from the last stage's result."""

    def loss(number: int, result: torch.Tensor) -> torch.Tensor:
        part, term = parts[number]
        return term.loss(to_token_outputs(result, term.reading), part)

    return loss


def _as_inputs(part: MicroBatch, reading: HeadReading, multiple: int) -> Inputs:
    """Inputs of a stage, with sequences padded to a multiple of a length."""
    sequences, longest = part.token_ids.shape
    # Megatron's activations are [length, batch]: positions are renumbered accordingly.
    predictors = part.predictors % longest * sequences + part.predictors // longest
    request = HeadRequest(reading, predictors, part.targets, part.kept)
    token_ids, positions, mask = part.token_ids, part.position_ids, part.attention_mask
    if more := -longest % multiple:
        token_ids = pad(token_ids, (0, more))
        positions = None if positions is None else pad(positions, (0, more))
        mask = None if mask is None else pad(mask, (0, more, 0, more))
        if mask is not None:
            # Padding attends to the first token: a row without any would give NaN.
            mask[..., longest:, 0] = True
    return Inputs(token_ids, positions, mask, request)
