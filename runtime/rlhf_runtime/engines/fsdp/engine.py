"""A causal language model, or one with a value head, trained by FSDP2."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.distributed.fsdp import FSDPModule

from rlhf_api.plan_memory import MemoryUse
from rlhf_runtime.engines.base import EngineBase, ResidentTensors
from rlhf_runtime.engines.fsdp.head import Head
from rlhf_runtime.engines.fsdp.loading import (
    load_causal_lm,
    load_weights,
    save_causal_lm,
)
from rlhf_runtime.engines.fsdp.rows import row_views
from rlhf_runtime.engines.offloading import device_bytes
from rlhf_runtime.engines.optimizer import Optimizer
from rlhf_runtime.engines.optimizer_settings import OptimizerSettings
from rlhf_runtime.engines.packing import MicroBatch, Packing, empty_micro_batch, in_step
from rlhf_runtime.engines.parallel import ParallelContext
from rlhf_runtime.engines.sharing import looks_at_everything, sequence_cost, shares_prompts
from rlhf_runtime.engines.training import (
    Consume,
    HeadReading,
    TokenOutputs,
    WeightedLoss,
)
from rlhf_runtime.hooks import Hook, nothing
from rlhf_runtime.reshard.views import Views

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
        tick: Hook = nothing,
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
        self._head = Head(self.module)
        self._shares_prompts = self._probe()
        if not self._shares_prompts:
            logger.info("%s computes a prompt with each of its responses", folder.name)

    def use_optimizer(self, settings: OptimizerSettings) -> None:
        """Train with a new optimizer from now on."""
        self.require_loaded()
        trained = {n: p for n, p in self.module.named_parameters() if p.requires_grad}
        self._optimizer = Optimizer(trained, settings)

    def packing(self, max_padded_tokens: int) -> Packing:
        """How this model's micro-batches are made."""
        cost = sequence_cost(self.module.config.hidden_size, self.parallel.device)
        return Packing(max_padded_tokens, cost, self._shares_prompts)

    @torch.no_grad()
    def infer(
        self, micro_batches: Sequence[MicroBatch], reading: HeadReading, consume: Consume
    ) -> None:
        """Run every micro-batch forward and hand what its head says to `consume`. Collective."""
        self.require_loaded()
        rounds = self._rounds(len(micro_batches))
        for part in in_step(micro_batches, rounds, empty_micro_batch()):
            consume(self._outputs(part, reading), part)
            self._tick()
        self._cut_again()

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
        """This rank's part of every weight as it is trained: here there is no other."""
        return self.views()

    def state(self) -> dict[str, Any]:
        """What later steps depend on; its tensors are the model's own, to save or to overwrite."""
        self.require_loaded()
        return {
            "weights": dict(self.module.named_parameters()),
            "version": self.version,
            "optimizer": {} if self._optimizer is None else self._optimizer.state(),
        }

    def expect_state(self, parameters: Collection[str]) -> None:
        """Make room for the optimizer's state of the parameters with these names."""
        if self._optimizer is not None:
            self._optimizer.expect_state(parameters)

    def held_bytes(self) -> dict[MemoryUse, int]:
        """What this rank holds of weights, gradients and optimizer now."""
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
        """Take over the weights of a saved model, except those it does not have. Collective."""
        self.require_loaded()
        load_weights(self.module, folder, self.parallel)
        self._weights_changed()

    def save(self, folder: Path, dtype: torch.dtype) -> None:
        """Write the model in Hugging Face format. Every rank must call."""
        self.require_loaded()
        save_causal_lm(self.module, folder, self.parallel, dtype)

    def _rounds(self, mine: int) -> int:
        """Forward passes that every rank makes: only FSDP's collectives need all of them."""
        return super()._rounds(mine) if isinstance(self.module, FSDPModule) else mine

    def _resident_tensors(self) -> ResidentTensors:
        parameters = list(self.module.parameters())
        gradients = [p.grad for p in parameters if p.grad is not None]
        optimizer = () if self._optimizer is None else self._optimizer.tensors()
        return ResidentTensors([*parameters, *gradients, *optimizer])

    def _outputs(self, part: MicroBatch, reading: HeadReading) -> TokenOutputs:
        return self._head.run(part.to(self.parallel.device), reading)

    def _probe(self) -> bool:
        """Ask the model how it treats its logits, and whether responses may share their prompt.

        Hidden states are compared: a value head of zeros would agree with anything.
        """
        device, config = self.parallel.device, self.module.config
        self._head.look_for_changed_logits(empty_micro_batch().to(device))
        shares = looks_at_everything(config) and shares_prompts(
            lambda part: self._head.hidden(part.to(device)), config.vocab_size, config.hidden_size
        )
        self._cut_again()
        return shares

    def _cut_again(self) -> None:
        """Without a backward pass FSDP's root would keep gathered weights."""
        if isinstance(self.module, FSDPModule):
            self.module.reshard()
