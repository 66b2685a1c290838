"""FsdpEngine: trains a causal language model, or one with a value head, with FSDP2."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from rlhf_api.plan_memory import MemoryUse
from rlhf_runtime.engines.base import EngineBase, ResidentTensors
from rlhf_runtime.engines.fsdp.head import FsdpHead
from rlhf_runtime.engines.fsdp.loading import (
    load_causal_lm,
    load_weights,
    save_causal_lm,
)
from rlhf_runtime.engines.offloading import device_bytes
from rlhf_runtime.engines.optimizer import Optimizer
from rlhf_runtime.engines.optimizer_settings import OptimizerSettings
from rlhf_runtime.engines.packing import MicroBatch, Packing, empty_micro_batch, pad_batches
from rlhf_runtime.engines.parallel import ParallelContext
from rlhf_runtime.engines.sharing import (
    has_full_attention,
    sequence_cost,
    supports_shared_prompts,
    width_of,
)
from rlhf_runtime.engines.training import (
    Consume,
    HeadReading,
    TokenOutputs,
    WeightedLoss,
)
from rlhf_runtime.hooks import Hook, noop
from rlhf_runtime.reshard.slices import TensorSlice
from rlhf_runtime.reshard.views import View, Views

logger = logging.getLogger(__name__)


class FsdpEngine(EngineBase):
    """A `TrainingEngine` for any causal language model of transformers."""

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
        tick: Hook = noop,
    ) -> None:
        super().__init__(parallel, tick)
        self.module = load_causal_lm(
            folder,
            parallel,
            precision,
            value_head=value_head,
            needs_head=needs_head,
            trained=trained,
            recompute=recompute,
        )
        self.module.requires_grad_(trained)
        self._head = FsdpHead(self.module, excluded_tokens)
        self._supports_shared_prompts = self._probe()
        if not self._supports_shared_prompts:
            logger.info("%s computes a prompt with each of its responses", folder.name)

    def use_optimizer(self, settings: OptimizerSettings) -> None:
        """Train with a new optimizer from now on."""
        self.require_loaded()
        trained = {n: p for n, p in self.module.named_parameters() if p.requires_grad}
        self._optimizer = Optimizer(trained, settings)

    def packing(self, max_padded_tokens: int) -> Packing:
        """Packing settings for this model's micro-batches."""
        cost = sequence_cost(width_of(self.module.config), self.parallel.device)
        return Packing(max_padded_tokens, cost, self._supports_shared_prompts)

    @torch.no_grad()
    def _infer(
        self, micro_batches: Sequence[MicroBatch], reading: HeadReading, consume: Consume
    ) -> None:
        rounds = self._rounds(len(micro_batches))
        for part in pad_batches(micro_batches, rounds, empty_micro_batch()):
            consume(self._outputs(part, reading), part)
            self._tick()
        self._free_gathered_weights()

    @torch.no_grad()
    def _forward(self, parts: Sequence[tuple[MicroBatch, WeightedLoss]]) -> None:
        for part, term in parts:
            term.loss(self._outputs(part, term.reading), part)
            self._tick()

    def _forward_backward(self, parts: Sequence[tuple[MicroBatch, WeightedLoss]]) -> None:
        for part, term in parts:
            share = term.loss(self._outputs(part, term.reading), part)
            torch.autograd.backward(share * self.parallel.data_size)  # FSDP averages over ranks
            self._tick()

    def views(self) -> Views:
        """This rank's rows of every parameter, by Hugging Face name."""
        self.require_loaded()
        return row_views(self.module)

    def master_views(self) -> Views:
        """This rank's trained rows, which are the same as `views`."""
        return self.views()

    def state(self) -> dict[str, Any]:
        """Weights, version and optimizer state; its tensors are no copies."""
        self.require_loaded()
        return {
            "weights": dict(self.module.named_parameters()),
            "version": self.version,
            "optimizer": {} if self._optimizer is None else self._optimizer.state(),
        }

    def expect_state(self, parameters: Collection[str]) -> None:
        """Allocate the optimizer's state of the parameters with these names."""
        if self._optimizer is not None:
            self._optimizer.expect_state(parameters)

    def bytes_on_device(self) -> dict[MemoryUse, int]:
        """Bytes of weights, gradients and optimizer on this rank's device."""
        parameters = list(self.module.parameters())
        gradients = [p.grad for p in parameters if p.grad is not None]
        if self._optimizer is None:
            return {MemoryUse.WEIGHTS: device_bytes(parameters)}
        return {
            MemoryUse.MASTER_WEIGHTS: device_bytes(parameters),
            MemoryUse.GRADIENTS: device_bytes(gradients),
            MemoryUse.OPTIMIZER: device_bytes(self._optimizer.tensors()),
        }

    def load_weights(self, folder: Path) -> None:
        """Copy the weights of a saved model, by name. Collective."""
        self.require_loaded()
        load_weights(self.module, folder, self.parallel)
        self._weights_changed()

    def save(self, folder: Path, dtype: torch.dtype) -> None:
        """Write the model in Hugging Face format. Collective."""
        self.require_loaded()
        save_causal_lm(self.module, folder, self.parallel, dtype)

    def _rounds(self, num_own: int) -> int:
        """Number of forward passes of every rank."""
        # Only FSDP's collectives need ranks to run equally many.
        return super()._rounds(num_own) if isinstance(self.module, FSDPModule) else num_own

    def _resident_tensors(self) -> ResidentTensors:
        parameters = list(self.module.parameters())
        gradients = [p.grad for p in parameters if p.grad is not None]
        optimizer = () if self._optimizer is None else self._optimizer.tensors()
        return ResidentTensors([*parameters, *gradients, *optimizer])

    def _outputs(self, part: MicroBatch, reading: HeadReading) -> TokenOutputs:
        return self._head.run(part.to(self.parallel.device), reading)

    def _probe(self) -> bool:
        """Test by forward passes if the model changes its logits and supports shared prompts."""
        device, config = self.parallel.device, self.module.config
        self._head.detect_changed_logits(empty_micro_batch().to(device))
        # Hidden states are compared: a value head of zeros would give equal outputs for anything.
        is_supported = has_full_attention(config) and supports_shared_prompts(
            lambda part: self._head.hidden(part.to(device)), config.vocab_size, width_of(config)
        )
        self._free_gathered_weights()
        return is_supported

    def _free_gathered_weights(self) -> None:
        # FSDP's root keeps its gathered weights until a backward pass, which inference lacks.
        if isinstance(self.module, FSDPModule):
            self.module.reshard()


def row_views(model: nn.Module) -> Views:
    """This rank's rows of every parameter, or the full parameter if uncut, by Hugging Face name."""
    views: dict[str, list[View]] = {}
    for name, parameter in model.named_parameters():
        if isinstance(parameter, DTensor):
            shape, start = compute_local_shape_and_global_offset(
                parameter.shape, parameter.device_mesh, parameter.placements
            )
            box = TensorSlice(tuple(start), tuple(shape))
            views[name] = [View(parameter.to_local().detach(), box)]
        else:
            views[name] = [View(parameter.data, TensorSlice.full(tuple(parameter.shape)))]
    return views
