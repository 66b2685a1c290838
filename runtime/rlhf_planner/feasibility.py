"""Feasibility of a job's strategy on its devices.

Given are the devices of each role, and how it is trained and run forward. Left to decide is
generation: ranks per engine, size of the cache, and whether engines release their memory while
others work.

Without a comparison of times the first feasible strategy is used (memory/choices.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

from rlhf_api.spec.placement import PlacementType, RoleCalls
from rlhf_flow.errors import DoesNotFit
from rlhf_planner.memory.choices import chosen_to_recompute, memory_choices, tried
from rlhf_planner.memory.generation import GenerationChoice, Loads, generation_loads
from rlhf_planner.memory.generation_choice import choose_generation
from rlhf_planner.memory.offloading import offload_depths
from rlhf_planner.memory.role_model import RoleModel
from rlhf_planner.memory.roles import MODEL_CALLS, role_model, static_memory
from rlhf_planner.placement.parallelism import cut_roles
from rlhf_planner.placement.placement import (
    DeviceGroup,
    device_groups,
    manual_placement,
    same_devices,
)
from rlhf_planner.placement.role_sets import role_sets, set_meshes, set_multiples
from rlhf_planner.placement.strategy import JobStrategy, RoleStrategy
from rlhf_planner.placement.validation import check_copies, check_offered, check_served
from rlhf_planner.problem.problem import PlanningProblem


@dataclass(frozen=True)
class PlacedJob:
    """A job and the devices of its roles."""

    problem: PlanningProblem
    strategy: JobStrategy
    """Its devices, with models cut."""
    groups: tuple[DeviceGroup, ...]
    """All devices, by the roles on them."""
    is_chosen: bool = False
    """True if the strategy comes from a comparison of times."""


@dataclass(frozen=True)
class FeasibleJob:
    """A job that fits into memory."""

    placed: PlacedJob
    """Its roles are complete; its engines are as requested."""
    models: tuple[RoleModel, ...]
    """Every role with a model."""
    loads: tuple[Loads, ...]
    """Per pool, the loads of its engines."""
    generations: tuple[GenerationChoice, ...]
    """Per pool, how roles generate."""

    @property
    def strategy(self) -> JobStrategy:
        """The strategy with which it fits."""
        engines = (engine for choice in self.generations for engine in choice.engines.items())
        return JobStrategy(self.placed.strategy.roles, dict(engines))


def apply_placement(problem: PlanningProblem, chosen: JobStrategy | None = None) -> PlacedJob:
    """Place a job, and complete the cuts of its models.

    Args:
        problem: the planning problem.
        chosen: at least the devices of each role. None: as the manifest says.

    Raises:
        InvalidPlacement: groups that do not match the roles, their calls or the pools.
        NotOffered: a role that is trained and runs forward on different devices, several roles
            that generate on the same GPUs or on some of a pool's devices, or weights that would be
            copied between devices or engines.
        ManifestError: a training engine or a cut that a model does not have.
        DoesNotDivide: a cut that does not divide devices, heads or layers' width.
    """
    placement = chosen or requested_placement(problem)
    roles = cut_roles(problem, placement.roles)
    check_offered(problem, placement.engines)
    check_served(problem)
    check_copies(problem, roles)
    groups = device_groups(problem.pools, placement)
    strategy = replace(placement, roles=roles)
    return PlacedJob(problem, strategy, groups, is_chosen=chosen is not None)


def check_feasible(placed: PlacedJob, roles: Mapping[str, RoleStrategy]) -> FeasibleJob:
    """Check the strategies of roles against the devices, and decide how roles generate.

    Args:
        placed: the job.
        roles: complete strategies, on the job's devices and with its cuts.

    Raises:
        DoesNotDivide: a fixed size of engines that does not divide.
        KvCacheTooSmall: a fixed cache below one longest sequence.
        DoesNotFit: more memory than a device has; the message shows the sum.
    """
    problem, pools = placed.problem, placed.problem.pools
    engines, depths = placed.strategy.engines, offload_depths(roles)
    models = tuple(role_model(problem, role, roles[role]) for role in problem.models)
    static = [static_memory(problem, group, models, depths) for group in placed.groups]
    loads = tuple(generation_loads(problem, pool, models, engines) for pool in pools)
    generations = tuple(
        choose_generation(
            problem.fixed,
            pool,
            pool_loads,
            engines,
            tuple(memory for memory in static if memory.group.pool == pool),
        )
        for pool, pool_loads in zip(pools, loads, strict=True)
    )
    complete = replace(placed, strategy=JobStrategy(roles, engines))
    return FeasibleJob(complete, models, loads, generations)


def requested_placement(problem: PlanningProblem) -> JobStrategy:
    """The placement in the manifest."""
    placement, models = problem.fixed.placement, problem.models
    if placement.type in (PlacementType.SPLIT, PlacementType.STANDALONE):
        heads = {role: facts.head for role, facts in models.items()}
        sets = role_sets(placement.type, heads, problem.policy)
        copies = {role: facts.fixed.num_ranks for role, facts in models.items()}
        # Devices of a set hold full copies of its models; those of the first also full engines.
        multiples = set_multiples(sets, copies, problem.fixed.engine_tensor)
        generating = [role for role, facts in models.items() if facts.generates]
        return same_devices(set_meshes(problem, sets, multiples), generating)
    return manual_placement(
        placement, {role: _call_kinds(problem, role) for role in models}, problem.pools
    )


def _call_kinds(problem: PlanningProblem, role: str) -> frozenset[RoleCalls]:
    """The kinds of a role's calls."""
    calls = (
        call for graph in problem.graphs.values() for call in graph.calls_of_kind(*MODEL_CALLS)
    )
    return frozenset(RoleCalls(call.kind.value) for call in calls if call.role == role)


def first_feasible(problem: PlanningProblem) -> FeasibleJob:
    """The first feasible job of the requested placement; for errors see `plan_problem`."""
    return first_feasible_choice(apply_placement(problem))


def first_feasible_choice(placed: PlacedJob) -> FeasibleJob:
    """The feasible strategy that is fastest by rule.

    Raises:
        DoesNotFit: none is feasible.
    """
    return _with_less_recomputation(_first_feasible(placed))


def _first_feasible(placed: PlacedJob) -> FeasibleJob:
    # The last choice needs the least memory, so its error is the one to report.
    *better, last = memory_choices(placed.problem, placed.strategy.roles, placed.groups)
    # Choices are in the order of their time, so the first feasible one is the fastest by rule.
    for roles in better:
        with suppress(DoesNotFit):
            return check_feasible(placed, roles)
    try:
        return check_feasible(placed, last)
    except DoesNotFit as error:
        raise DoesNotFit("\n".join([str(error), *tried(placed.problem, last)])) from error


def _with_less_recomputation(job: FeasibleJob) -> FeasibleJob:
    """Drop recomputation of each role that fits without it."""
    # A choice recomputes several roles at once, of which some may not need it. Engines stay as they
    # are: more memory for activations must not leave less for generation.
    for role in chosen_to_recompute(job.placed.problem, job.strategy.roles):
        kept = {role: replace(job.strategy.roles[role], recompute=False)}
        with suppress(DoesNotFit):
            other = check_feasible(job.placed, {**job.strategy.roles, **kept})
            job = other if other.strategy.engines == job.strategy.engines else job
    return job
