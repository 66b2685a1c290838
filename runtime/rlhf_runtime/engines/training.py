"""The interface between roles and training engines.

Losses and inference get numbers of the predicted tokens, never logits: an engine may cut the
vocabulary over ranks, or never have the logits of a complete micro-batch in memory.
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
    """Read log-probabilities of the targets under softmax(logits / temperature)."""

    temperature: float = 1.0
    """Above 0."""
    with_entropy: bool = False
    """True to compute the distributions' entropies, too."""
    entropy_gradient: bool = False
    """True if entropies are part of a loss."""


@dataclass(frozen=True)
class ReadValues:
    """Read the numbers of a scalar head."""


HeadReading = ReadLogProbs | ReadValues


class TokenOutputs(NamedTuple):
    """Outputs of a head for the n predicted tokens of a micro-batch, in float32 on the model's
    device."""

    values: Float[Tensor, " n"]
    """Log-probabilities of the targets, or the scalar head's numbers."""
    entropies: Float[Tensor, " n"] | None = None
    """In nats, if requested."""


Loss = Callable[[TokenOutputs, MicroBatch], torch.Tensor]
"""Computes this rank's share of the loss of a micro-batch."""
Consume = Callable[[TokenOutputs, MicroBatch], None]


@dataclass(frozen=True)
class WeightedLoss:
    """A loss on some rows; an optimizer step minimizes the sum of one or more."""

    reading: HeadReading
    """Kind of outputs that the loss needs."""
    micro_batches: Sequence[MicroBatch]
    """This rank's part of the rows."""
    loss: Loss
    no_grad_micro_batches: Sequence[MicroBatch] = ()
    """Micro-batches without gradient, which run forward only and before all others.

    Their rows contribute to the loss's statistics, or are inputs of the loss of other rows."""


class TrainingEngine(Protocol):
    """Weights, forward pass and optimizer of one role, on the ranks of its mesh.

    Every rank of the mesh must call collective methods, in the same order.
    """

    @property
    def version(self) -> int:
        """Number of changes of the weights."""

    @property
    def offloaded(self) -> OffloadDepth:
        """Depth of the present offload.

        Unless it is NOTHING, methods that need weights, gradients or optimizer raise `NotLoaded`.
        """

    def offload(self, depth: OffloadDepth) -> None:
        """Free the device's memory of weights, gradients and optimizer, or only of derived weights;
        no-op if that was done. Views stay valid."""

    def load(self) -> None:
        """Undo `offload`; copies may still run when this returns. Collective."""

    def require_loaded(self) -> None:
        """Ensure that everything is on the device, before views are used.

        Raises:
            NotLoaded: it is on the host.
        """

    @property
    def learning_rate(self) -> float:
        """Learning rate of the next update."""

    def use_optimizer(self, settings: OptimizerSettings) -> None:
        """Train with a new optimizer from now on."""

    def packing(self, max_padded_tokens: int) -> Packing:
        """Packing settings for this model's micro-batches."""

    def infer(
        self, micro_batches: Sequence[MicroBatch], reading: HeadReading, consume: Consume
    ) -> None:
        """Run every micro-batch forward; ranks with the head pass its outputs to `consume`.
        Collective."""

    def update(self, terms: Sequence[WeightedLoss]) -> float:
        """One optimizer step on the sum of all terms over micro-batches and ranks. Collective, also
        for ranks without a micro-batch.

        Args:
            terms: at least one; the same losses on every rank.

        Returns:
            The norm of the gradient before clipping.
        """

    def leave_out_update(self) -> None:
        """Leave out an update in whose losses nothing counts, on all ranks.

        The learning rate's schedule advances; weights and Adam's state stay.
        """

    def views(self) -> Views:
        """This rank's storage of every weight that it computes with, by Hugging Face name."""

    def master_views(self) -> Views:
        """Its storage of every weight that it trains, in float32; of frozen weights `views`."""

    def state(self) -> dict[str, Any]:
        """Everything that later steps depend on; its tensors are no copies: save or overwrite
        them."""

    def expect_state(self, parameters: Collection[str]) -> None:
        """Allocate the optimizer's state of this rank's parts of the parameters with these
        names."""

    def adopt(self, state: dict[str, Any]) -> None:
        """Adopt the plain values of a `state` whose tensors have been overwritten. Collective."""

    def bytes_on_device(self) -> Mapping[MemoryUse, int]:
        """Bytes of weights, gradients and optimizer on this rank's device."""

    def copy_weights_from(self, other: TrainingEngine, entirely: bool = False) -> None:
        """Copy the weights of another engine on the same ranks, by name. Collective.

        Raises:
            UnsupportedModel: `entirely`, and the models differ in a weight.
        """

    def load_weights(self, folder: Path) -> None:
        """Copy the weights of a saved model, by name. Collective."""

    def save(self, folder: Path, dtype: torch.dtype) -> None:
        """Write the model in Hugging Face format. Collective."""
