"""A causal language model, or one with a value head, trained by FSDP2."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.distributed.fsdp import FSDPModule

from rlhf_api.plan_memory import MemoryWhat
from rlhf_runtime.engines.fsdp.loading import (
    copy_weights,
    load_causal_lm,
    load_weights,
    local_bytes,
    local_parameters,
    require_alike,
    save_causal_lm,
)
from rlhf_runtime.engines.fsdp.optimizer import Optimizer
from rlhf_runtime.engines.fsdp.packing import MicroBatch, Packing, empty_micro_batch, in_step
from rlhf_runtime.engines.fsdp.settings import OptimizerSettings
from rlhf_runtime.engines.fsdp.sharing import looks_at_everything, shares_prompts
from rlhf_runtime.engines.parallel import ParallelContext
from rlhf_runtime.hooks import Hook, nothing

logger = logging.getLogger(__name__)

Loss = Callable[[torch.Tensor, MicroBatch], torch.Tensor]
"""From outputs[n, width] at the predictors of a micro-batch to this rank's share of the loss."""


@dataclass(frozen=True)
class LossTerm:
    """A loss on some rows: what an optimizer step minimizes is the sum of one or more."""

    micro_batches: Sequence[MicroBatch]
    """This rank's part of the rows."""
    loss: Loss
    silent: Sequence[MicroBatch] = ()
    """Rows whose loss is known to have no gradient: they run forward only, for the statistics that
    the loss collects."""


class FsdpModel:
    """Weights, forward pass and optimizer of one role."""

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
        self.parallel = parallel
        self._tick = tick
        self.module = load_causal_lm(
            folder,
            parallel,
            precision,
            value_head=value_head,
            needs_head=needs_head,
            recompute=recompute and trained,
        )
        self.module.requires_grad_(trained)
        self.optimizer: Optimizer | None = None
        self.version = 0
        self._selected: torch.Tensor | None = None
        self.module.get_output_embeddings().register_forward_pre_hook(self._select)
        self._shares_prompts = self._probe_sharing()
        if not self._shares_prompts:
            logger.info("%s computes a prompt with each of its responses", folder.name)

    def use_optimizer(self, settings: OptimizerSettings) -> None:
        """Train with a new optimizer from now on."""
        self.optimizer = Optimizer(self.module, settings)

    def outputs(self, micro_batch: MicroBatch) -> torch.Tensor:
        """The head's outputs [n, width] in float32, only where a response token is predicted."""
        micro_batch = micro_batch.to(self.parallel.device)
        self._selected = micro_batch.predictors
        try:
            result: torch.Tensor = self.module(
                input_ids=micro_batch.token_ids,
                position_ids=micro_batch.position_ids,
                attention_mask=micro_batch.attention_mask,
                use_cache=False,
            ).logits
        finally:
            self._selected = None
        return result.float()

    def packing(self, max_padded_tokens: int) -> Packing:
        """How this model's micro-batches are made."""
        return Packing(max_padded_tokens, self.module.config.hidden_size, self._shares_prompts)

    @torch.no_grad()
    def infer(
        self, micro_batches: list[MicroBatch], consume: Callable[[torch.Tensor, MicroBatch], None]
    ) -> None:
        """Run every micro-batch forward and hand its outputs to `consume`."""
        rounds = self._rounds(len(micro_batches))
        for micro_batch in in_step(micro_batches, rounds, empty_micro_batch()):
            consume(self.outputs(micro_batch), micro_batch)
            self._tick()
        if isinstance(self.module, FSDPModule):
            self.module.reshard()  # without a backward pass the root would keep gathered weights

    def update(self, terms: Sequence[LossTerm]) -> float:
        """One optimizer step on the sum of all terms over micro-batches and ranks.

        Returns the gradient's norm. Every rank must call, be it with no micro-batch.

        Args:
            terms: at least one; the same losses on every rank.
        """
        assert self.optimizer is not None, "use_optimizer comes before update"
        forward_only = [(part, term.loss) for term in terms for part in term.silent]
        trained = [(part, term.loss) for term in terms for part in term.micro_batches]
        empty = (empty_micro_batch(), terms[0].loss)
        with torch.no_grad():
            for micro_batch, loss in in_step(forward_only, self._rounds(len(forward_only)), empty):
                loss(self.outputs(micro_batch), micro_batch)
                self._tick()
        rounds = max(1, self._rounds(len(trained)))  # momentum moves on without a signal
        for micro_batch, loss in in_step(trained, rounds, empty):
            share = loss(self.outputs(micro_batch), micro_batch)
            torch.autograd.backward(share * self.parallel.data_size)  # FSDP averages over ranks
            self._tick()
        self.version += 1
        return self.optimizer.step()

    def state(self) -> dict[str, Any]:
        """What later steps depend on; its tensors are the model's own, to save or to overwrite."""
        return {
            "weights": dict(self.module.named_parameters()),
            "version": self.version,
            "optimizer": {} if self.optimizer is None else self.optimizer.state(),
        }

    def expect_state(self, parameters: Collection[str]) -> None:
        """Make room for the optimizer's state of the parameters with these names."""
        if self.optimizer is not None:
            self.optimizer.expect_state(parameters)

    def adopt(self, state: dict[str, Any]) -> None:
        """Take over the plain values of a `state` whose tensors have been overwritten."""
        self.version = state["version"]
        if self.optimizer is not None:
            self.optimizer.resume(state["optimizer"]["updates"])

    def local_parameters(self) -> dict[str, torch.Tensor]:
        """This rank's own storage of every parameter, by Hugging Face name."""
        return local_parameters(self.module)

    def held_bytes(self) -> dict[MemoryWhat, int]:
        """What this rank holds of weights, gradients and optimizer now."""
        parameters = list(self.module.parameters())
        gradients = [p.grad for p in parameters if p.grad is not None]
        if self.optimizer is None:
            return {MemoryWhat.WEIGHTS: local_bytes(parameters)}
        return {
            MemoryWhat.MASTER_WEIGHTS: local_bytes(parameters),
            MemoryWhat.GRADIENTS: local_bytes(gradients),
            MemoryWhat.OPTIMIZER: local_bytes(self.optimizer.tensors()),
        }

    def copy_weights_from(self, other: FsdpModel, entirely: bool = False) -> None:
        """Take over another model's weights, except those it does not have.

        Raises:
            UnsupportedModel: some are not of both models, and all should be copied.
        """
        if entirely:
            require_alike(other.module, self.module)
        copy_weights(other.module, self.module)
        self.version += 1

    def load_weights(self, folder: Path) -> None:
        """Take over the weights of a saved model, except those it does not have. Collective."""
        load_weights(self.module, folder, self.parallel)
        self.version += 1

    def save(self, folder: Path, dtype: torch.dtype) -> None:
        """Write the model in Hugging Face format. Every rank must call."""
        save_causal_lm(self.module, folder, self.parallel, dtype)

    def _rounds(self, mine: int) -> int:
        """Forward passes that every rank makes: FSDP's collectives need all of them."""
        if not isinstance(self.module, FSDPModule):
            return mine
        return int(self.parallel.max(torch.tensor([mine]))[0])

    @torch.no_grad()
    def _probe_sharing(self) -> bool:
        """Hidden states are compared: a value head of zeros would agree with anything."""
        config = self.module.config
        if not looks_at_everything(config):
            return False
        head = self.module.get_output_embeddings()
        hidden: list[torch.Tensor] = []
        handle = head.register_forward_hook(
            lambda _module, inputs, _output: hidden.append(inputs[0])
        )

        def outputs(micro_batch: MicroBatch) -> torch.Tensor:
            self.outputs(micro_batch)
            return hidden.pop().float()

        shares = shares_prompts(outputs, config.vocab_size, config.hidden_size)
        handle.remove()
        if isinstance(self.module, FSDPModule):
            self.module.reshard()
        return shares

    def _select(
        self, _module: torch.nn.Module, inputs: tuple[torch.Tensor, ...]
    ) -> tuple[torch.Tensor, ...]:
        """Let the output projection see the selected positions only: [n, hidden]."""
        if self._selected is None:
            return inputs
        return (inputs[0].flatten(0, 1)[self._selected], *inputs[1:])
