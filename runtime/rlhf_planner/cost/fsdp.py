"""Times under FSDP2: each block's weights are gathered before it computes and its gradients reduced
afterwards, while its neighbours compute.

With L blocks of P parameters, c their computation and g, r the collectives of one, a micro-batch
takes

    forward    g_root + g + e + L c + (L - 1) max(0, g - c) + head
    backward   head + max(0, g - head) + L c' + (L - 1) max(0, g + r - c') + e' + r + r_root

The root (embedding, last norm, output projection) is gathered for a full pass. Weights travel in
the format of the computation, gradients in float32. Both are copied into and out of the buffers
that travel, on the stream that computes:

    gathered    P ( 2 b + (s + b) / n )  bytes: of a number s are stored, b in the computation
    reduced     P ( b + 4 + 12 / n )  bytes, with the sum over micro-batches

Source: PyTorch, torch/distributed/fsdp/_fully_shard; Zhao et al., "PyTorch FSDP"
(arXiv 2304.11277), sections 3 and 4.
"""

from __future__ import annotations

from dataclasses import dataclass

from rlhf_api.plan import ModelHead
from rlhf_api.spec.resources import Device
from rlhf_planner.cost.collectives import Links
from rlhf_planner.cost.layers import NOTHING, UNCUT, LayerKind, LayerSeconds, LayerTime
from rlhf_planner.cost.micro_batches import MicroBatches
from rlhf_planner.cost.seconds import CallSeconds, step_seconds
from rlhf_planner.memory.fsdp import is_sharded, root_parameters, stored_bytes
from rlhf_planner.memory.role_model import FLOAT32_BYTES, RoleModel, shard_bytes


@dataclass(frozen=True)
class _Pass:
    """A pass of one micro-batch."""

    computing: LayerTime
    # Seconds of collectives that are not hidden.
    waiting: float


class FsdpPasses:
    """The passes of a role, for micro-batches of one size."""

    def __init__(
        self, model: RoleModel, part: MicroBatches, layers: LayerSeconds, links: Links
    ) -> None:
        self._model, self._part = model, part
        self._layers, self._links = layers, links
        self._group = links.data_group(model.mesh)
        self._block = model.shape.block_parameters
        self._root = root_parameters(model)
        self._is_sharded = is_sharded(model, model.mesh.data)

    def forward(self, *, gathers_root: bool = True) -> _Pass:
        """A forward pass.

        Args:
            gathers_root: False if the root is still gathered from the pass before.
        """
        count, part = self._model.shape.num_layers, self._part
        block = self._with_copies(
            self._layers.forward(LayerKind.BLOCK, UNCUT, part.tokens, part.pairs),
            self._gathered_bytes(self._block),
        )
        gather = self._gather(self._block)
        # The first block's weights have nothing to hide behind.
        waiting = gather + (count - 1) * max(0.0, gather - self._hiding(block))
        computing = (
            self._layers.forward(LayerKind.EMBEDDING, UNCUT, part.tokens, 0.0)
            .plus(block, count)
            .plus(self._head(backward=False))
        )
        if gathers_root:
            waiting += self._gather(self._root)
            computing = self._with_copies(computing, self._gathered_bytes(self._root))
        return _Pass(computing, waiting)

    def backward(self) -> _Pass:
        """The backward pass that follows."""
        count, part = self._model.shape.num_layers, self._part
        block = self._with_copies(
            self._layers.backward(
                LayerKind.BLOCK, UNCUT, part.tokens, part.pairs, self._model.recompute
            ),
            self._gathered_bytes(self._block) + self._reduced_bytes(self._block),
        )
        head = self._head(backward=True)
        gather, reduce = self._gather(self._block), self._reduce(self._block)
        waiting = (
            # The head's backward pass hides the last block's weights.
            max(0.0, gather - self._hiding(head))
            # Weights of the next block and gradients of the last one share the links.
            + (count - 1) * max(0.0, gather + reduce - self._hiding(block))
            # No computation is left to hide the last gradients.
            + reduce
            + self._reduce(self._root)
        )
        computing = (
            self._layers.backward(LayerKind.EMBEDDING, UNCUT, part.tokens, 0.0, False)
            .plus(block, count)
            .plus(head)
        )
        return _Pass(self._with_copies(computing, self._reduced_bytes(self._root)), waiting)

    def _hiding(self, time: LayerTime) -> float:
        """Seconds of collectives that a computation hides."""
        # On CPUs collectives compute on the cores of the ranks, so nothing hides them (measured by
        # `make bench-estimator`).
        return time.total if self._model.device is Device.GPU else 0.0

    def _head(self, *, backward: bool) -> LayerTime:
        if self._model.head is ModelHead.SCALAR:
            return NOTHING
        tokens = self._part.predicted
        if backward:
            return self._layers.backward(LayerKind.HEAD, UNCUT, tokens, 0.0, False)
        return self._layers.forward(LayerKind.HEAD, UNCUT, tokens, 0.0)

    def _with_copies(self, time: LayerTime, num_bytes: float) -> LayerTime:
        copying = self._links.hardware.memory_seconds(num_bytes)
        return time._replace(memory=time.memory + copying)

    def _gathered_bytes(self, parameters: int) -> float:
        if not self._is_sharded:
            return 0.0
        # The block is copied out of the gathered buffer (read and written); the own shard is read
        # as stored and written into the buffer.
        number = self._model.compute_bytes
        own = (stored_bytes(self._model) + number) / self._group.size
        return parameters * (2 * number + own)

    def _reduced_bytes(self, parameters: int) -> float:
        if not self._is_sharded:
            return 0.0
        # Gradients are read, and written to the buffer in float32. The own shard is added to the
        # sum over micro-batches: two float32 numbers read, one written.
        own = 3 * FLOAT32_BYTES / self._group.size
        return parameters * (self._model.compute_bytes + FLOAT32_BYTES + own)

    def _gather(self, parameters: int) -> float:
        return self._links.all_gather_seconds(parameters * self._model.compute_bytes, self._group)

    def _reduce(self, parameters: int) -> float:
        return self._links.reduce_scatter_seconds(parameters * FLOAT32_BYTES, self._group)


def fsdp_update(
    model: RoleModel, part: MicroBatches, layers: LayerSeconds, links: Links
) -> CallSeconds:
    """All micro-batches of an update, and its step."""
    passes = FsdpPasses(model, part, layers, links)
    forward, backward = passes.forward(), passes.backward()
    computing = forward.computing.plus(backward.computing)
    own = shard_bytes(model.num_parameters, model.mesh.data, 1)
    return CallSeconds(
        compute=part.number * computing.compute,
        memory=part.number * computing.memory,
        launch=part.number * computing.launch,
        data_communication=part.number * (forward.waiting + backward.waiting),
        optimizer=step_seconds(own, model.mesh, layers, links),
    )


def fsdp_inference(
    model: RoleModel, part: MicroBatches, layers: LayerSeconds, links: Links
) -> CallSeconds:
    """All micro-batches forward; the root stays gathered between them."""
    passes = FsdpPasses(model, part, layers, links)
    first, others = passes.forward(), passes.forward(gathers_root=False)
    rest = part.number - 1
    computing = first.computing.plus(others.computing, rest)
    return CallSeconds(
        compute=computing.compute,
        memory=computing.memory,
        launch=computing.launch,
        data_communication=first.waiting + rest * others.waiting,
    )
