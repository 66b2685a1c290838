"""EngineBase: the part of a training engine that does not depend on how it computes a model.

It owns the optimizer, the version of the weights, and offloading to the host.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from rlhf_api.plan import OffloadDepth
from rlhf_runtime.engines.deterministic import deterministic_kernels
from rlhf_runtime.engines.offloading import Offloading
from rlhf_runtime.engines.optimizer import Optimizer
from rlhf_runtime.engines.packing import MicroBatch, empty_micro_batch, pad_batches
from rlhf_runtime.engines.parallel import ParallelContext
from rlhf_runtime.engines.training import Consume, HeadReading, TrainingEngine, WeightedLoss
from rlhf_runtime.errors import UnsupportedModel
from rlhf_runtime.hooks import Hook
from rlhf_runtime.reshard.execute import execute
from rlhf_runtime.reshard.gathering import gather_layouts
from rlhf_runtime.reshard.layout import Layout
from rlhf_runtime.reshard.plan import plan_reshard
from rlhf_runtime.reshard.views import Views


class ResidentTensors(NamedTuple):
    """An engine's tensors on the device."""

    kept: Sequence[torch.Tensor]
    """Their values survive offloading."""
    derived: Sequence[torch.Tensor] = ()
    """`_write_parameters` computes their values from `kept`."""


class EngineBase(ABC):
    """Optimizer steps, versions, offloading and copies of weights, for every `TrainingEngine`."""

    def __init__(self, parallel: ParallelContext, tick: Hook) -> None:
        self.parallel = parallel
        self._tick = tick
        self._optimizer: Optimizer | None = None
        self._version = 0
        self._offloading = Offloading(parallel.device)
        self._offloaded = OffloadDepth.NOTHING

    @property
    def version(self) -> int:
        """Number of changes of the weights."""
        return self._version

    @property
    def learning_rate(self) -> float:
        """Learning rate of the next update."""
        assert self._optimizer is not None, "use_optimizer comes before"
        return self._optimizer.learning_rate

    @property
    def offloaded(self) -> OffloadDepth:
        """Depth of the present offload."""
        return self._offloaded

    def offload(self, depth: OffloadDepth) -> None:
        """Free the device's memory of weights, gradients and optimizer."""
        # The depth of the first offload stays: `load` has to undo that one.
        if self._offloaded is not OffloadDepth.NOTHING:
            return
        tensors = self._resident_tensors()
        if depth is OffloadDepth.EVERYTHING:
            self._offloading.offload((*tensors.kept, *tensors.derived))
        elif depth is OffloadDepth.DERIVED:
            self._offloading.offload((), tensors.derived)
        self._offloaded = depth

    def load(self) -> None:
        """Undo `offload`. Collective."""
        self._offloading.load()
        # Derived weights have no copy on the host: they are computed again.
        if self._offloaded is OffloadDepth.DERIVED:
            self._write_parameters()
        self._offloaded = OffloadDepth.NOTHING

    def require_loaded(self) -> None:
        """Ensure that everything is on the device; raises NotLoaded if it is on the host."""
        self._offloading.require()

    def adopt(self, state: dict[str, Any]) -> None:
        """Adopt the plain values of a `state` whose tensors have been overwritten. Collective."""
        # A state has only master weights: the parameters follow from them.
        self._write_parameters()
        self._version = state["version"]
        if self._optimizer is not None:
            self._optimizer.resume(state["optimizer"]["updates"])

    def copy_weights_from(self, other: TrainingEngine, entirely: bool = False) -> None:
        """Copy the weights of another engine on the same ranks, by name. Collective.

        Raises:
            UnsupportedModel: `entirely`, and the models differ in a weight.
        """
        # Masters, because the parameters may be rounded to bfloat16.
        copy_weights(other.master_views(), self.master_views(), self.parallel, entirely)
        self._weights_changed()

    def infer(
        self, micro_batches: Sequence[MicroBatch], reading: HeadReading, consume: Consume
    ) -> None:
        """Run every micro-batch forward; ranks with the head pass its outputs to `consume`.
        Collective."""
        self.require_loaded()
        with deterministic_kernels(self.parallel.device):
            self._infer(micro_batches, reading, consume)

    def update(self, terms: Sequence[WeightedLoss]) -> float:
        """One optimizer step on the sum of all terms over micro-batches and ranks. Collective, also
        for ranks without a micro-batch.

        Args:
            terms: at least one; the same losses on every rank.

        Returns:
            The norm of the gradient before clipping.
        """
        assert self._optimizer is not None, "use_optimizer comes before update"
        self.require_loaded()
        no_grad = [(part, term) for term in terms for part in term.no_grad_micro_batches]
        trained = [(part, term) for term in terms for part in term.micro_batches]
        # Ranks with fewer micro-batches take part in the collectives of the others.
        empty = (empty_micro_batch(), terms[0])
        with deterministic_kernels(self.parallel.device):
            self._forward(list(pad_batches(no_grad, self._rounds(len(no_grad)), empty)))
            # At least one backward pass: without a signal, Adam's momentum still moves the weights.
            rounds = max(1, self._rounds(len(trained)))
            self._forward_backward(list(pad_batches(trained, rounds, empty)))
        norm = self._optimizer.step()
        self._free_gradients()
        self._weights_changed()
        return norm

    def leave_out_update(self) -> None:
        """Leave out an update in whose losses nothing counts, on all ranks.

        The learning rate's schedule advances; weights and Adam's state stay.
        """
        assert self._optimizer is not None, "use_optimizer comes before"
        self._optimizer.leave_out()

    @abstractmethod
    def _infer(
        self, micro_batches: Sequence[MicroBatch], reading: HeadReading, consume: Consume
    ) -> None:
        """Pass the head's outputs of every micro-batch to `consume`, on ranks with the head."""

    @abstractmethod
    def _forward(self, parts: Sequence[tuple[MicroBatch, WeightedLoss]]) -> None:
        """Call losses without gradients; equally many parts, possibly none, on every rank."""

    @abstractmethod
    def _forward_backward(self, parts: Sequence[tuple[MicroBatch, WeightedLoss]]) -> None:
        """Give the optimizer the gradients of the sum over parts and ranks; equally many parts, at
        least one, on every rank."""

    @abstractmethod
    def master_views(self) -> Views:
        """This rank's storage of every weight that it trains."""

    @abstractmethod
    def _resident_tensors(self) -> ResidentTensors:
        """Weights, gradients and optimizer state on the device."""

    def _write_parameters(self) -> None:  # noqa: B027  # trained weights may be the parameters
        """Copy trained weights into the parameters that compute. Collective."""

    def _free_gradients(self) -> None:  # noqa: B027  # the optimizer may have freed them
        """Free the device's memory of gradients until the next update."""

    def _weights_changed(self) -> None:
        """Propagate changed master weights. Collective."""
        self._write_parameters()
        self._version += 1

    def _rounds(self, num_own: int) -> int:
        """Forward passes of every rank: the maximum of micro-batches over all replicas."""
        return int(self.parallel.max(torch.tensor([num_own]))[0])


def copy_weights(
    source: Views, target: Views, parallel: ParallelContext, entirely: bool = False
) -> None:
    """Overwrite the target's weights by the source's of the same name and shape. Collective.

    The two models may be cut differently. Weights of only one of them (a value head) stay.

    Args:
        source: this rank's storage of one model.
        target: this rank's storage of the other.
        parallel: the ranks of both models.
        entirely: True if both must have the same weights.

    Raises:
        UnsupportedModel: `entirely`, and they have not.
    """
    group: dist.ProcessGroup | None = parallel.group if parallel.size > 1 else None
    source_layout, target_layout, topology = gather_layouts(source, target, group)
    if entirely:
        _require_same_shapes(source_layout, target_layout)
    common = {
        name
        for name, shape in target_layout.shapes.items()
        if source_layout.shapes.get(name) == shape
    }
    plan = plan_reshard(
        _select_tensors(source_layout, common), _select_tensors(target_layout, common), topology
    )
    one, other = (
        {name: views[name] for name in common & views.keys()} for views in (source, target)
    )
    execute(plan, parallel.rank, one, other, parallel.group)


def _select_tensors(layout: Layout, names: Collection[str]) -> Layout:
    shapes = {name: layout.shapes[name] for name in sorted(names)}
    pieces = tuple(
        tuple(piece for piece in rank_pieces if piece.name in names)
        for rank_pieces in layout.pieces
    )
    return Layout(shapes, pieces)


def _require_same_shapes(source: Layout, target: Layout) -> None:
    for name in sorted({*source.shapes, *target.shapes}):
        one, other = source.shapes.get(name), target.shapes.get(name)
        if one != other:
            raise UnsupportedModel(
                f"weights cannot be copied between models that differ: got {name} of shape "
                f"{one or 'none'} and {other or 'none'}, allowed the same; give both roles models "
                "of one architecture"
            )
