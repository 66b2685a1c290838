"""What roles need of an engine that trains a model, whichever it is.

Losses and inference see numbers of the tokens that are predicted, never logits: an engine may cut
the vocabulary over ranks, or never hold the logits of a whole micro-batch.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from jaxtyping import Float
from torch import Tensor

from rlhf_api.plan import OffloadDepth
from rlhf_api.plan_memory import MemoryUse
from rlhf_runtime.engines.optimizer_settings import OptimizerSettings
from rlhf_runtime.engines.packing import MicroBatch, Packing
from rlhf_runtime.reshard.views import Views


@dataclass(frozen=True)
class ReadLogProbs:
    """Read a language model's head: log-probabilities of the targets under softmax(logits /
    temperature)."""

    temperature: float = 1.0
    """Above 0."""
    with_entropy: bool = False
    """Whether the distributions' entropies are wanted, too."""
    entropy_gradient: bool = False
    """Whether they are part of a loss."""


@dataclass(frozen=True)
class ReadValues:
    """Read a scalar head."""


HeadReading = ReadLogProbs | ReadValues


class TokenOutputs(NamedTuple):
    """What a head says at the n predictors of a micro-batch, in float32 on the model's device."""

    values: Float[Tensor, " n"]
    """Log-probabilities of the targets, or the scalar head's numbers."""
    entropies: Float[Tensor, " n"] | None = None
    """In nats, where they were asked for."""


Loss = Callable[[TokenOutputs, MicroBatch], torch.Tensor]
"""From what the head says of a micro-batch to this rank's share of the loss."""
Consume = Callable[[TokenOutputs, MicroBatch], None]


@dataclass(frozen=True)
class WeightedLoss:
    """A loss on some rows: what an optimizer step minimizes is the sum of one or more."""

    reading: HeadReading
    """What the loss is called with."""
    micro_batches: Sequence[MicroBatch]
    """This rank's part of the rows."""
    loss: Loss
    no_grad_micro_batches: Sequence[MicroBatch] = ()
    """They run forward only, before any of the others: rows whose loss is known to have no
    gradient, for the statistics that the loss collects, or such that the loss has to know of before
    it says anything of others."""


class TrainingEngine(Protocol):
    """Weights, forward pass and optimizer of one role, on the ranks of its mesh.

    What is said to be collective every rank of the mesh must call, in the same order.
    """

    @property
    def version(self) -> int:
        """How often the weights have changed."""

    @property
    def offloaded(self) -> OffloadDepth:
        """How much has left the device: unless it is nothing, whatever needs weights, gradients or
        optimizer raises `NotLoaded`."""

    def offload(self, depth: OffloadDepth) -> None:
        """Give the device's memory of weights, gradients and optimizer back, or of what follows
        from the rest, unless that was done. Views stay valid."""

    def load(self) -> None:
        """Undo it, if it was done; copies may still run when this returns. Collective."""

    def require_loaded(self) -> None:
        """Let what follows find everything on the device: for those that hold views.

        Raises:
            NotLoaded: it is on the host.
        """

    @property
    def learning_rate(self) -> float:
        """The rate that the next update uses."""

    def use_optimizer(self, settings: OptimizerSettings) -> None:
        """Train with a new optimizer from now on."""

    def packing(self, max_padded_tokens: int) -> Packing:
        """How this model's micro-batches are made."""

    def infer(
        self, micro_batches: Sequence[MicroBatch], reading: HeadReading, consume: Consume
    ) -> None:
        """Run every micro-batch forward; on ranks that have the head `consume` gets what it says.
        Collective."""

    def update(self, terms: Sequence[WeightedLoss]) -> float:
        """One optimizer step on the sum of all terms over micro-batches and ranks; returns the
        gradient's norm. Collective, be it with no micro-batch.

        Args:
            terms: at least one; the same losses on every rank.
        """

    def views(self) -> Views:
        """This rank's storage of every weight that it computes with, by Hugging Face name."""

    def master_views(self) -> Views:
        """Its storage of every weight that it trains, in float32; of frozen weights `views`."""

    def state(self) -> dict[str, Any]:
        """What later steps depend on; its tensors are the engine's own, to save or to overwrite."""

    def expect_state(self, parameters: Collection[str]) -> None:
        """Make room for the optimizer's state of the parameters with these names, as far as this
        rank holds them."""

    def adopt(self, state: dict[str, Any]) -> None:
        """Take over the plain values of a `state` whose tensors have been overwritten.
        Collective."""

    def held_bytes(self) -> Mapping[MemoryUse, int]:
        """What this rank holds of weights, gradients and optimizer now."""

    def copy_weights_from(self, other: TrainingEngine, entirely: bool = False) -> None:
        """Take over the weights of another engine on the same ranks, except those that it does not
        have. Collective.

        Raises:
            UnsupportedModel: some are not of both models, and all should be copied.
        """

    def load_weights(self, folder: Path) -> None:
        """Take over the weights of a saved model, except those it does not have. Collective."""

    def save(self, folder: Path, dtype: torch.dtype) -> None:
        """Write the model in Hugging Face format. Collective."""
