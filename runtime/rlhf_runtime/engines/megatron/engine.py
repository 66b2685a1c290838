"""A decoder of a known family, trained by Megatron-core over tensor ranks, stages and replicas."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import pad

from rlhf_api.plan_memory import MemoryUse
from rlhf_runtime.engines.base import EngineBase, ResidentTensors
from rlhf_runtime.engines.configuration import read_config
from rlhf_runtime.engines.heads import check_head, is_classifier
from rlhf_runtime.engines.megatron.head import Question, read_answer
from rlhf_runtime.engines.megatron.layout import check_pieces
from rlhf_runtime.engines.megatron.loading import load_model, overwrite_weights
from rlhf_runtime.engines.megatron.masters import MasterWeights
from rlhf_runtime.engines.megatron.pipeline import (
    Answered,
    Inputs,
    forward_backward,
    infer,
    with_gradients,
)
from rlhf_runtime.engines.megatron.saving import save_model
from rlhf_runtime.engines.megatron.stage import Stage
from rlhf_runtime.engines.offloading import Shrunk, device_bytes, grow, shrink, storages_of
from rlhf_runtime.engines.optimizer import STEP, Optimizer
from rlhf_runtime.engines.optimizer_settings import OptimizerSettings
from rlhf_runtime.engines.packing import MicroBatch, Packing, empty_micro_batch, in_step
from rlhf_runtime.engines.parallel import ParallelContext
from rlhf_runtime.engines.sharing import sequence_cost
from rlhf_runtime.engines.training import (
    Consume,
    HeadReading,
    WeightedLoss,
)
from rlhf_runtime.hooks import Hook, nothing
from rlhf_runtime.reshard.gathering import gather_pieces
from rlhf_runtime.reshard.local_shards import LocalShards, local_shards
from rlhf_runtime.reshard.views import Views


@dataclass(frozen=True)
class Cutting:
    """How a mesh shares the work, beside what the mesh says."""

    sequence_parallel: bool = True
    """Whether tensor ranks share the positions of sequences between products of matrices."""
    distributed_optimizer: bool = True
    """Whether replicas share master weights and Adam's moments."""


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
        cutting: Cutting = Cutting(),
        tick: Hook = nothing,
    ) -> None:
        """Build it, and read this rank's weights. Every rank of the mesh does.

        Args:
            folder: of the model, in Hugging Face format, with safetensors files.
            parallel: the mesh, as this rank sees it.
            precision: of weights and activations; trained weights are kept in float32, too.
            value_head: whether a scalar head takes the place of the output projection.
            needs_head: whether the folder must have it.
            trained: whether weights will change.
            recompute: whether activations are computed again for the backward pass.
            cutting: how the work is shared.
            tick: called before each micro-batch, and after the last one.

        Raises:
            UnsupportedModel: no family that is known, or a cut that does not come out even.
            ModelIncomplete: the folder lacks weights.
            WrongHead: the folder has another head than is needed.
        """
        super().__init__(parallel, tick)
        config = read_config(folder)
        check_head(folder, config, value_head=value_head, needs_head=needs_head)
        self.stage = Stage(
            config,
            parallel,
            value_head=value_head,
            sequence_parallel=cutting.sequence_parallel,
            recompute=recompute and trained,
            dtype=precision,
        )
        self._check_cut(parallel)
        self.stage.requires_grad_(trained)
        self.stage.eval()
        self._gradients = (
            with_gradients(self.stage, sharded=cutting.distributed_optimizer) if trained else None
        )
        self._no_gradients: Shrunk = []
        self._masters = None if self._gradients is None else MasterWeights(self._gradients)
        load_model(
            self.master_views(),
            self.stage.architecture,
            folder,
            from_classifier=is_classifier(config),
        )
        self._free_gradients()
        self._write_parameters()

    def _check_cut(self, parallel: ParallelContext) -> None:
        """Prove that the ranks of the mesh hold the whole model together, and nothing twice."""
        check_pieces(
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
        self._optimizer = Optimizer(weights, settings, norm)

    def packing(self, max_padded_tokens: int) -> Packing:
        """How this model's micro-batches are made."""
        cost = sequence_cost(self.stage.architecture.hidden_size, self.parallel.device)
        return Packing(max_padded_tokens, cost, share_prompts=True)

    def infer(
        self, micro_batches: Sequence[MicroBatch], reading: HeadReading, consume: Consume
    ) -> None:
        """Run every micro-batch forward; on ranks of the last stage `consume` gets what its head
        says. Collective."""
        self.require_loaded()
        rounds = self._rounds(len(micro_batches))
        if rounds:
            parts = list(in_step(micro_batches, rounds, empty_micro_batch()))
            infer(
                self.stage,
                self._inputs((part, reading) for part in parts),
                rounds,
                lambda number, answer: consume(read_answer(answer, reading), parts[number]),
            )
            self._tick()

    def _forward(self, parts: Sequence[tuple[MicroBatch, WeightedLoss]]) -> None:
        if parts:
            infer(self.stage, self._asking(parts), len(parts), _losses(parts))

    def _forward_backward(self, parts: Sequence[tuple[MicroBatch, WeightedLoss]]) -> None:
        assert self._masters is not None and self._gradients is not None
        grow(self._no_gradients)
        forward_backward(self._gradients, self._asking(parts), len(parts), _losses(parts))
        self._tick()
        self._masters.give_gradients()

    def _free_gradients(self) -> None:
        if self._gradients is not None:
            self._no_gradients += shrink(storages_of(b.grad_data for b in self._gradients.buffers))

    def views(self) -> Views:
        """This rank's part of every weight, in the format of the computation."""
        self.require_loaded()
        return self.stage.views()

    def state(self) -> dict[str, Any]:
        """What later steps depend on; its tensors are the engine's own, to save or to overwrite.

        It is what FSDP has, cut otherwise: each may go on from the other's.
        """
        return {
            "weights": self._to_save(self.master_views()),
            "version": self.version,
            "optimizer": {} if self._optimizer is None else self._optimizer_state(self._optimizer),
        }

    def expect_state(self, parameters: Collection[str]) -> None:
        """Make room for the optimizer's state of the parameters with these names."""
        if self._optimizer is not None:
            assert self._masters is not None
            masters = self._masters
            given = [path for path in masters.shards if {*masters.names(path)} & {*parameters}]
            self._optimizer.expect_state(given)

    def held_bytes(self) -> Mapping[MemoryUse, int]:
        """What this rank holds of weights, gradients and optimizer now."""
        weights = device_bytes(self.stage.parameters())
        if self._masters is None or self._gradients is None:
            return {MemoryUse.WEIGHTS: weights}
        gradients = [buffer.grad_data for buffer in self._gradients.buffers]
        held = {MemoryUse.GRADIENTS: device_bytes(gradients)}
        if self._masters.are_parameters:
            held[MemoryUse.MASTER_WEIGHTS] = weights
        else:
            held[MemoryUse.WEIGHTS] = weights
            held[MemoryUse.MASTER_WEIGHTS] = device_bytes(self._masters.weights().values())
        if self._optimizer is not None:
            held[MemoryUse.OPTIMIZER] = device_bytes(self._optimizer.tensors())
        return held

    def load_weights(self, folder: Path) -> None:
        """Take over the weights of a saved model, except those it does not have. Collective."""
        overwrite_weights(self.master_views(), self.stage.architecture, folder)
        self._weights_changed()

    def save(self, folder: Path, dtype: torch.dtype) -> None:
        """Write the model in Hugging Face format. Collective."""
        save_model(self.stage, self.master_views(), folder, dtype)

    def master_views(self) -> Views:
        """This rank's part of every weight as it is trained, in float32; of frozen ones `views`."""
        self.require_loaded()
        if self._masters is None:
            return self.stage.views()
        return self._masters.views(self._masters.weights())

    def _optimizer_state(self, optimizer: Optimizer) -> dict[str, Any]:
        """By Hugging Face name; weights in one parameter share its number of steps."""
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
        if self._masters.are_parameters:
            return ResidentTensors([*parameters, *kept])
        return ResidentTensors(kept, parameters)

    def _asking(self, parts: Iterable[tuple[MicroBatch, WeightedLoss]]) -> Iterator[Inputs]:
        return self._inputs((part, term.reading) for part, term in parts)

    def _inputs(self, parts: Iterable[tuple[MicroBatch, HeadReading]]) -> Iterator[Inputs]:
        """What a stage computes of micro-batches, each made when its turn comes."""
        multiple = self.parallel.at.tensor_size if self.stage.config.sequence_parallel else 1
        for part, reading in parts:
            self._tick()
            yield _as_inputs(part.to(self.parallel.device), reading, multiple)


def _losses(parts: Sequence[tuple[MicroBatch, WeightedLoss]]) -> Answered:
    """What the last stage does with the answer for each of the micro-batches."""

    def loss(number: int, answer: torch.Tensor) -> torch.Tensor:
        part, term = parts[number]
        return term.loss(read_answer(answer, term.reading), part)

    return loss


def _as_inputs(part: MicroBatch, reading: HeadReading, multiple: int) -> Inputs:
    """A micro-batch for a stage, longer where its length is no multiple.

    Nobody sees what is added; it sees the beginning, as attention to nothing gives no number.
    """
    sequences, longest = part.token_ids.shape
    predictors = part.predictors % longest * sequences + part.predictors // longest
    question = Question(reading, predictors, part.targets)
    token_ids, positions, mask = part.token_ids, part.position_ids, part.attention_mask
    if more := -longest % multiple:
        token_ids = pad(token_ids, (0, more))
        positions = None if positions is None else pad(positions, (0, more))
        mask = None if mask is None else pad(mask, (0, more, 0, more))
        if mask is not None:
            mask[..., longest:, 0] = True
    return Inputs(token_ids, positions, mask, question)
