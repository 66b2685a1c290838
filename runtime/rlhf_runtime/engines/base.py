"""What every training engine has beside its model: an optimizer, a count of changes, and a place:
the device or the host."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from rlhf_api.plan import OffloadDepth
from rlhf_runtime.engines.copying import copy_weights
from rlhf_runtime.engines.offloading import Offloading
from rlhf_runtime.engines.optimizer import Optimizer
from rlhf_runtime.engines.packing import MicroBatch, empty_micro_batch, in_step
from rlhf_runtime.engines.parallel import ParallelContext
from rlhf_runtime.engines.training import TrainingEngine, WeightedLoss
from rlhf_runtime.hooks import Hook
from rlhf_runtime.reshard.views import Views


class ResidentTensors(NamedTuple):
    """An engine's tensors on the device."""

    kept: Sequence[torch.Tensor]
    """Whose values matter."""
    derived: Sequence[torch.Tensor] = ()
    """Others, whose values `_write_parameters` computes from them."""


class EngineBase(ABC):
    """The part of `TrainingEngine` that does not depend on how a model is computed."""

    def __init__(self, parallel: ParallelContext, tick: Hook) -> None:
        self.parallel = parallel
        self._tick = tick
        self._optimizer: Optimizer | None = None
        self._version = 0
        self._offloading = Offloading(parallel.device)
        self._offloaded = OffloadDepth.NOTHING

    @property
    def version(self) -> int:
        """How often the weights have changed."""
        return self._version

    @property
    def learning_rate(self) -> float:
        """The rate that the next update uses."""
        assert self._optimizer is not None, "use_optimizer comes before"
        return self._optimizer.learning_rate

    @property
    def offloaded(self) -> OffloadDepth:
        """How much has left the device."""
        return self._offloaded

    def offload(self, depth: OffloadDepth) -> None:
        """Give memory of weights, gradients and optimizer back."""
        if self._offloaded is not OffloadDepth.NOTHING:
            return
        held = self._resident_tensors()
        if depth is OffloadDepth.EVERYTHING:
            self._offloading.offload((*held.kept, *held.derived))
        elif depth is OffloadDepth.DERIVED:
            self._offloading.offload((), held.derived)
        self._offloaded = depth

    def load(self) -> None:
        """Take it again, with what was in it. Collective."""
        self._offloading.load()
        if self._offloaded is OffloadDepth.DERIVED:
            self._write_parameters()
        self._offloaded = OffloadDepth.NOTHING

    def require_loaded(self) -> None:
        """Let what follows find everything on the device."""
        self._offloading.require()

    def adopt(self, state: dict[str, Any]) -> None:
        """Take over the plain values of a `state` whose tensors have been overwritten.
        Collective."""
        self._write_parameters()
        self._version = state["version"]
        if self._optimizer is not None:
            self._optimizer.resume(state["optimizer"]["updates"])

    def copy_weights_from(self, other: TrainingEngine, entirely: bool = False) -> None:
        """Take over the weights of another engine on the same ranks, except those that it does not
        have. Collective.

        Raises:
            UnsupportedModel: some are not of both models, and all should be copied.
        """
        copy_weights(other.master_views(), self.master_views(), self.parallel, entirely)
        self._weights_changed()

    def update(self, terms: Sequence[WeightedLoss]) -> float:
        """One optimizer step on the sum of all terms over micro-batches and ranks; returns the
        gradient's norm. Collective, be it with no micro-batch.

        Args:
            terms: at least one; the same losses on every rank.
        """
        assert self._optimizer is not None, "use_optimizer comes before update"
        self.require_loaded()
        no_grad = [(part, term) for term in terms for part in term.no_grad_micro_batches]
        trained = [(part, term) for term in terms for part in term.micro_batches]
        empty = (empty_micro_batch(), terms[0])
        self._forward(list(in_step(no_grad, self._rounds(len(no_grad)), empty)))
        rounds = max(1, self._rounds(len(trained)))  # momentum moves on without a signal
        self._forward_backward(list(in_step(trained, rounds, empty)))
        norm = self._optimizer.step()
        self._free_gradients()
        self._weights_changed()
        return norm

    @abstractmethod
    def _forward(self, parts: Sequence[tuple[MicroBatch, WeightedLoss]]) -> None:
        """Call losses for what they collect; as many parts, be it none, on every rank."""

    @abstractmethod
    def _forward_backward(self, parts: Sequence[tuple[MicroBatch, WeightedLoss]]) -> None:
        """Give the optimizer the gradients of the sum over parts and ranks; as many parts, at least
        one, on every rank."""

    @abstractmethod
    def master_views(self) -> Views:
        """This rank's storage of every weight that it trains."""

    @abstractmethod
    def _resident_tensors(self) -> ResidentTensors:
        """Weights, gradients and optimizer, on the device."""

    def _write_parameters(self) -> None:  # noqa: B027  # what is trained may be what computes
        """Compute with the values that are trained. Collective."""

    def _free_gradients(self) -> None:  # noqa: B027  # the optimizer may have done so
        """Give the device's memory of gradients back until the next update."""

    def _weights_changed(self) -> None:
        """What is trained has other values now. Collective."""
        self._write_parameters()
        self._version += 1

    def _rounds(self, mine: int) -> int:
        """Micro-batches that every rank runs: as many as the replica that has most of them."""
        return int(self.parallel.max(torch.tensor([mine]))[0])
