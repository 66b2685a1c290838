"""Seconds of the calls that work with a model: on its ranks, with what the job gives them."""

from __future__ import annotations

from dataclasses import replace

from rlhf_api.plan import Mesh
from rlhf_flow.planning.estimate.call_batches import (
    call_batch,
    generation_call,
    pretraining_batch,
)
from rlhf_flow.planning.generation_memory import GenerationLoad
from rlhf_flow.planning.memory import RoleModel
from rlhf_flow.planning.problem import PlanningProblem
from rlhf_flow.planning.seconds.call_seconds import CallSeconds, in_turn
from rlhf_flow.planning.seconds.generation import generate_seconds
from rlhf_flow.planning.seconds.inference import infer_seconds
from rlhf_flow.planning.seconds.layers import LayerSeconds
from rlhf_flow.planning.seconds.links import Links
from rlhf_flow.planning.seconds.measured_layers import layers_of
from rlhf_flow.planning.seconds.micro_batches import Batch
from rlhf_flow.planning.seconds.split_generation import SplitGeneration
from rlhf_flow.planning.seconds.training import train_seconds
from rlhf_flow.planning.stage_fusion.fused_plan import Fusion
from rlhf_flow.step.calls import ModelCall, TrainOptions


def train_call_seconds(
    problem: PlanningProblem, call: ModelCall, model: RoleModel, links: Links, mini_batches: int
) -> CallSeconds:
    """A call that trains. Batches of auxiliary losses are further micro-batches of its updates.

    Args:
        problem: what is planned.
        call: of its step.
        model: the role.
        links: of its pool.
        mini_batches: parts of a batch, each for an update.
    """
    assert isinstance(call.options, TrainOptions)
    layers, epochs = _layers(model, links), call.options.loss.updates(1)
    own = train_seconds(model, call_batch(problem, call), layers, links, mini_batches, epochs)
    if not call.options.auxiliary:
        return own
    others = pretraining_batch(problem.workload)
    beside = train_seconds(model, others, layers, links, mini_batches, epochs)
    beside = replace(beside, optimizer=0.0).times(len(call.options.auxiliary))
    return in_turn([own, beside])


def infer_call_seconds(
    problem: PlanningProblem, call: ModelCall, model: RoleModel, links: Links
) -> CallSeconds:
    """A call that runs a role forward; arguments as above."""
    return infer_batch_seconds(call_batch(problem, call), model, links)


def infer_batch_seconds(batch: Batch, model: RoleModel, links: Links) -> CallSeconds:
    """The same over some rows."""
    return infer_seconds(model, batch, _layers(model, links), links)


def generate_call_seconds(
    problem: PlanningProblem,
    call: ModelCall,
    model: RoleModel,
    load: GenerationLoad,
    engines: tuple[Mesh, int],
    links: Links,
) -> CallSeconds:
    """A call that generates; arguments as above.

    Args:
        problem: what is planned.
        call: of its step.
        model: the role.
        load: what is asked of its engines.
        engines: their ranks, and bytes of their caches on each device.
        links: of their pool.
    """
    batch, (mesh, kv_cache_bytes) = call_batch(problem, call), engines
    return generate_seconds(
        load,
        generation_call(problem, call),
        mesh,
        kv_cache_bytes,
        batch.prompt,
        batch.response,
        _layers(model, links),
        links,
    )


def split_generation(
    problem: PlanningProblem,
    call: ModelCall,
    model: RoleModel,
    load: GenerationLoad,
    engines: tuple[Mesh, int],
    links: Links,
    fusion: Fusion,
) -> SplitGeneration:
    """The same where few engines finish the last responses; arguments as above.

    Args:
        problem: what is planned.
        call: of its step.
        model: the role.
        load: what is asked of its engines.
        engines: their ranks, and bytes of their caches on each device.
        links: of their pool.
        fusion: which of them, and how many responses.
    """
    batch, (mesh, kv_cache_bytes) = call_batch(problem, call), engines
    return SplitGeneration(
        load=load,
        call=generation_call(problem, call),
        engines=mesh,
        finish=fusion.mesh,
        threshold_rows=fusion.threshold_rows,
        kv_cache_bytes=kv_cache_bytes,
        prompt=batch.prompt,
        response=batch.response,
        layers=_layers(model, links),
        links=links,
    )


def _layers(model: RoleModel, links: Links) -> LayerSeconds:
    return layers_of(links.hardware, model.shape, model.precision)
