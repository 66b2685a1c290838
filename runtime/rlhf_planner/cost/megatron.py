"""Times under Megatron-core: tensor ranks share layers, pipeline stages have some of them.

A micro-batch of n tokens takes on a stage with l layers

    forward    l (c + 2 a) + ends + s          a: all-reduce of n h numbers between tensor ranks,
    backward   l (c' + 2 a) + ends + s         or, with sequence parallelism, the all-gather and the
                                               reduce-scatter that take as long together

c and c' the computation, s a message of n h numbers to the next stage. Recomputation adds c + 2 a.
With m micro-batches and p stages in the schedule 1F1B, an update takes

    (m + p - 1) slots of the slowest stage: m of them its own work, p - 1 the bubble.

Micro-batches are assumed to be equal. Afterwards float32 gradients are reduced between replicas;
with a distributed optimizer each gets its part, and weights are gathered after the step.

Source: Narayanan et al. (arXiv 2104.04473), sections 2.2 and 3; Korthikanti et al. (arXiv
2205.05198), section 4.2, for sequence parallelism.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from rlhf_api.plan import ModelHead
from rlhf_planner.cost.collectives import Links
from rlhf_planner.cost.layers import NOTHING, LayerCut, LayerKind, LayerSeconds, LayerTime
from rlhf_planner.cost.micro_batches import MicroBatches
from rlhf_planner.cost.seconds import CallSeconds, step_seconds, write_seconds
from rlhf_planner.memory.megatron import stage_parameters, vocabulary_rows
from rlhf_planner.memory.role_model import FLOAT32_BYTES, RoleModel

# All-reduces of a layer in a pass: after attention and after the feed-forward layer.
REDUCTIONS = 2


class _Slot(NamedTuple):
    """One micro-batch on one stage."""

    computing: LayerTime
    # Communication of tensor ranks.
    tensor: float
    # Messages between stages.
    stages: float

    @property
    def total(self) -> float:
        """The sum."""
        return self.computing.total + self.tensor + self.stages

    def call(self, number: int, stages: int) -> CallSeconds:
        """A number of micro-batches through a number of stages of this time."""
        # While a pipeline fills and drains, each stage idles for the slots of the other stages.
        return CallSeconds(
            compute=number * self.computing.compute,
            memory=number * self.computing.memory,
            launch=number * self.computing.launch,
            tensor_communication=number * self.tensor,
            stage_communication=number * self.stages,
            bubble=(stages - 1) * self.total,
        )


def megatron_update(
    model: RoleModel, part: MicroBatches, layers: LayerSeconds, links: Links
) -> CallSeconds:
    """All micro-batches of an update, the reduction of gradients, and its step."""
    mesh = model.mesh
    slot = _slowest(model, part, layers, links, trains=True)
    call = slot.call(part.number, mesh.pipeline)
    num_parameters = max(stage_parameters(model, stage) for stage in _stages(model))
    is_sharded = model.distributed_optimizer and mesh.data > 1
    # A distributed optimizer steps one shard per replica.
    stepped = -(-num_parameters // mesh.data) if is_sharded else num_parameters
    stepping = step_seconds(stepped, mesh, layers, links)
    writing = write_seconds(stepped, model.compute_bytes, links)
    return CallSeconds(
        compute=call.compute,
        memory=call.memory,
        launch=call.launch,
        tensor_communication=call.tensor_communication,
        data_communication=_gradients(model, num_parameters, links, is_sharded=is_sharded),
        stage_communication=call.stage_communication,
        bubble=call.bubble,
        optimizer=stepping + writing,
    )


def megatron_inference(
    model: RoleModel, part: MicroBatches, layers: LayerSeconds, links: Links
) -> CallSeconds:
    """All micro-batches forward."""
    slot = _slowest(model, part, layers, links, trains=False)
    return slot.call(part.number, model.mesh.pipeline)


class StageSeconds(NamedTuple):
    """Seconds of one micro-batch on a stage, with its messages to other ranks."""

    forward: float
    backward: float


def stage_seconds(
    model: RoleModel, part: MicroBatches, layers: LayerSeconds, links: Links
) -> tuple[StageSeconds, ...]:
    """Passes of each stage of a trained role, from the first layers to the last."""
    passes = []
    for stage in range(model.mesh.pipeline):
        forward = _slot(model, part, layers, links, stage, trains=False).total
        both = _slot(model, part, layers, links, stage, trains=True).total
        passes.append(StageSeconds(forward, both - forward))
    return tuple(passes)


def _slowest(
    model: RoleModel, part: MicroBatches, layers: LayerSeconds, links: Links, *, trains: bool
) -> _Slot:
    slots = (_slot(model, part, layers, links, stage, trains) for stage in _stages(model))
    return max(slots, key=lambda slot: slot.total)


def _stages(model: RoleModel) -> tuple[int, ...]:
    """The stages that may be slowest: both ends."""
    # All stages have equally many layers; only the ends have an embedding or a head besides.
    last = model.mesh.pipeline - 1
    return (0, last) if last else (0,)


def _slot(
    model: RoleModel,
    part: MicroBatches,
    layers: LayerSeconds,
    links: Links,
    stage: int,
    trains: bool,
) -> _Slot:
    mesh, cut = model.mesh, LayerCut(model.mesh.tensor, model.sequence_parallel)
    number = model.shape.num_layers // mesh.pipeline
    is_last = stage == mesh.pipeline - 1
    has_head = is_last and model.head is ModelHead.LM
    time = _forward(layers, LayerKind.BLOCK, cut, part.tokens, part.pairs)
    if trains:
        recompute = model.recompute
        backward = _backward(layers, LayerKind.BLOCK, cut, part.tokens, part.pairs, recompute)
        time = time.plus(backward)
    computing = NOTHING.plus(time, number)
    if stage == 0:
        computing = _with_end(computing, LayerKind.EMBEDDING, layers, cut, part.tokens, trains)
    if has_head:
        computing = _with_end(computing, LayerKind.HEAD, layers, cut, part.predicted, trains)
    if trains:
        # A separate kernel adds a micro-batch's gradients to the float32 ones: b + 8 bytes each.
        summing = stage_parameters(model, stage) * (model.compute_bytes + 2 * FLOAT32_BYTES)
        more = links.hardware.memory_seconds(summing)
        computing = computing._replace(memory=computing.memory + more)
    # Forward, backward and, with recomputation, forward again.
    passes = (2 + model.recompute) if trains else 1
    # The embedding's output is reduced, too, and backward the gradient of the head's input.
    reductions = REDUCTIONS * number * passes + (stage == 0) + (has_head and trains)
    activations = part.tokens * model.shape.hidden_size * model.compute_bytes
    tensor = reductions * links.all_reduce_seconds(activations, links.tensor_group(mesh))
    return _Slot(computing, tensor, _message(model, activations, links) * (2 if trains else 1))


def _with_end(
    time: LayerTime,
    kind: LayerKind,
    layers: LayerSeconds,
    cut: LayerCut,
    tokens: float,
    trains: bool,
) -> LayerTime:
    time = time.plus(_forward(layers, kind, cut, tokens, 0.0))
    return time.plus(_backward(layers, kind, cut, tokens, 0.0, False)) if trains else time


# Both ends of a pipeline have the same blocks, as have passes with and without recomputation.
@lru_cache(maxsize=16384)
def _forward(
    layers: LayerSeconds, kind: LayerKind, cut: LayerCut, tokens: float, pairs: float
) -> LayerTime:
    return layers.forward(kind, cut, tokens, pairs)


@lru_cache(maxsize=16384)
def _backward(
    layers: LayerSeconds,
    kind: LayerKind,
    cut: LayerCut,
    tokens: float,
    pairs: float,
    recompute: bool,
) -> LayerTime:
    return layers.backward(kind, cut, tokens, pairs, recompute)


def _message(model: RoleModel, activations: float, links: Links) -> float:
    """Seconds of a micro-batch's activations on their way to the next stage."""
    # With sequence parallelism tensor ranks share the message.
    if model.mesh.pipeline == 1:
        return 0.0
    own = activations / (model.mesh.tensor if model.sequence_parallel else 1)
    crosses = links.stage_group(model.mesh).nodes > 1
    return links.send_seconds(own, crosses_nodes=crosses)


def _gradients(model: RoleModel, num_parameters: int, links: Links, *, is_sharded: bool) -> float:
    """Seconds of gradients between replicas and, with a distributed optimizer, of gathering
    weights."""
    # All of it follows the last micro-batch, so nothing hides it
    # (docs/adr/0020-megatron-computes-torch-optimizes.md).
    mesh, group = model.mesh, links.data_group(model.mesh)
    gradients = num_parameters * FLOAT32_BYTES
    if is_sharded:
        seconds = links.reduce_scatter_seconds(gradients, group)
        seconds += links.all_gather_seconds(num_parameters * model.compute_bytes, group)
    else:
        seconds = links.all_reduce_seconds(gradients, group)
    # With tied embeddings both ends of a pipeline have the table, and sum its gradient.
    if mesh.pipeline > 1 and model.shape.tied_embeddings and model.head is ModelHead.LM:
        table = vocabulary_rows(model.shape, mesh.tensor) * model.shape.hidden_size
        ends = links.group(mesh.first_rank, 2, (mesh.pipeline - 1) * mesh.tensor)
        seconds += links.all_reduce_seconds(table * FLOAT32_BYTES, ends)
    return seconds
