"""Completions of strategies: cuts of models, compute settings, and sizes of engines. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product

from rlhf_api.mesh import Mesh
from rlhf_api.plan import Pool
from rlhf_api.spec.model_cut import uneven_pipeline, uneven_tensor
from rlhf_planner.memory.choices import micro_batch_sizes, recompute_choices
from rlhf_planner.memory.generation_choice import is_possible, possible_sizes
from rlhf_planner.placement.parallelism import torn_groups
from rlhf_planner.placement.strategy import Cut, EngineStrategy, JobStrategy, RoleStrategy
from rlhf_planner.problem.problem import PlanningProblem, RoleSpec
from rlhf_sizing.shape import DecoderShape


def completions(
    problem: PlanningProblem, role: str, strategy: RoleStrategy
) -> Iterator[RoleStrategy]:
    """Every strategy of a role that completes one as the manifest allows; the depth to which it
    leaves its devices stays as it is."""
    facts = problem.models[role]
    recomputes = recompute_choices(facts) if strategy.recompute is None else (strategy.recompute,)
    tokens = strategy.micro_batch_tokens or facts.fixed.micro_batch_tokens
    sizes = micro_batch_sizes(problem) if tokens is None else [tokens]
    for cut in cuts(problem, role, strategy):
        for recompute, size in product(recomputes, sizes):
            yield replace(
                strategy,
                tensor=cut.tensor,
                pipeline=cut.pipeline,
                micro_batch_tokens=size,
                recompute=recompute,
            )


def cuts(problem: PlanningProblem, role: str, strategy: RoleStrategy) -> tuple[Cut, ...]:
    """The cuts that complete a strategy of a role; exactly one if it is fixed."""
    facts, devices = problem.models[role], strategy.devices
    tensor = strategy.tensor or facts.fixed.tensor
    pipeline = strategy.pipeline or facts.fixed.pipeline
    if not facts.uses_megatron:
        # FSDP cuts no model. `cut_roles` refuses a fixed cut, with the field to change.
        return (Cut(tensor or 1, pipeline or 1),)
    tensors = [tensor] if tensor else _tensors(facts, problem.pool(devices.pool), devices)
    pipelines = [pipeline] if pipeline else _pipelines(facts, devices.num_devices)
    every = (Cut(*pair) for pair in product(tensors, pipelines))
    return tuple(cut for cut in every if devices.num_devices % cut.num_ranks == 0)


def _tensors(facts: RoleSpec, pool: Pool, mesh: Mesh) -> list[int]:
    """Sizes that divide the devices and the model, and keep tensor groups within nodes."""
    return [
        size
        for size in range(1, pool.devices_per_node + 1)
        if mesh.num_devices % size == 0
        and not any(uneven_tensor(facts.shape, size))
        and not torn_groups(mesh.ranks, size, pool.devices_per_node)
    ]


def _pipelines(facts: RoleSpec, num_devices: int) -> list[int]:
    """Divisors of the devices that divide the layers."""
    return [
        size
        for size in range(1, facts.shape.num_layers + 1)
        if num_devices % size == 0 and not any(uneven_pipeline(facts.shape, size))
    ]


def engine_completions(
    problem: PlanningProblem, role: str, engines: EngineStrategy
) -> Iterator[EngineStrategy]:
    """Engines of a role of every size that completes a strategy, smallest first; none if a fixed
    size does not divide the devices. Cache and release stay as they are: they follow from the
    memory that other roles leave."""
    shape, devices = problem.models[role].shape, engines.devices
    pool, fixed = problem.pool(devices.pool), engines.tensor or problem.fixed.engine_tensor
    for tensor in possible_sizes(pool, devices, shape) if fixed is None else (fixed,):
        if is_possible(tensor, pool, devices, shape):
            yield replace(engines, tensor=tensor)


def engine_tensors(problem: PlanningProblem, role: str, devices: Mesh) -> tuple[int, ...]:
    """Possible ranks per engine of a role on some devices."""
    engines = engine_completions(problem, role, EngineStrategy(devices))
    return tuple(sized.mesh.tensor for sized in engines)


def devices_only(placement: JobStrategy) -> JobStrategy:
    """The devices of a strategy; all else is open."""
    return JobStrategy(
        {role: RoleStrategy(strategy.devices) for role, strategy in placement.roles.items()},
        {role: EngineStrategy(engine.devices) for role, engine in placement.engines.items()},
    )


def possible_cuts(devices: Sequence[Pool], shapes: Sequence[DecoderShape]) -> list[tuple[int, int]]:
    """Tensor ranks and stages, in powers of two, that devices and models allow; one cut per
    product."""
    per_node = min(pool.devices_per_node for pool in devices)
    total = min(pool.num_devices for pool in devices)
    powers = [2**k for k in range(total.bit_length())]
    # Of cuts with equal products the last one stays, which has the most tensor ranks: these share
    # activations, too.
    best: dict[int, tuple[int, int]] = {}
    for tensor in powers:
        if per_node % tensor or any(any(uneven_tensor(shape, tensor)) for shape in shapes):
            continue
        for pipeline in powers:
            if total % (tensor * pipeline) == 0 and not any(
                any(uneven_pipeline(shape, pipeline)) for shape in shapes
            ):
                best[tensor * pipeline] = (tensor, pipeline)
    return [best[size] for size in sorted(best)]
