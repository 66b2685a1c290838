"""Feasibility of a job on devices, for a placement and a memory choice.

The placement says which ranks hold each model and which generate with it; a `MemoryChoice` says how
they compute. Left to decide is generation: ranks per engine, size of the cache, and whether engines
release their memory while others work.

Without a comparison of times the first feasible memory choice is used (memory/choices.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

from rlhf_api.mesh import Mesh
from rlhf_api.spec.placement import PlacementType, RoleCalls
from rlhf_flow.errors import DoesNotFit
from rlhf_planner.memory.choices import MemoryChoice, memory_choices, tried
from rlhf_planner.memory.engine_size import choose_generation
from rlhf_planner.memory.generation import EngineChoice, GenerationChoice, Loads, generation_loads
from rlhf_planner.memory.items import RoleModel
from rlhf_planner.memory.roles import MODEL_CALLS, role_models, static_memory
from rlhf_planner.placement.parallelism import cut_meshes
from rlhf_planner.placement.placement import (
    DeviceGroup,
    RolePlacement,
    device_groups,
    manual_placement,
    meshes_placement,
)
from rlhf_planner.placement.role_sets import role_sets, set_meshes, set_multiples
from rlhf_planner.placement.validation import check_copies, check_offered, check_served
from rlhf_planner.problem.problem import PlanningProblem


@dataclass(frozen=True)
class PlacedJob:
    """A job and the devices of its roles."""

    problem: PlanningProblem
    placement: Mapping[str, RolePlacement]
    """Devices of each role with a model."""
    meshes: Mapping[str, Mesh]
    """The ranks of each role with a model, cut for training."""
    groups: tuple[DeviceGroup, ...]
    """All devices, by the roles on them."""
    is_chosen: bool = False
    """True if placement and memory choice come from a comparison of times."""


@dataclass(frozen=True)
class FeasibleJob:
    """A placed job that fits into memory, and the choices with which it does."""

    placed: PlacedJob
    choice: MemoryChoice
    models: tuple[RoleModel, ...]
    """Every role with a model."""
    loads: tuple[Loads, ...]
    """Per pool, the loads of its engines."""
    generations: tuple[GenerationChoice, ...]
    """Per pool, how roles generate."""

    @property
    def engines(self) -> dict[str, EngineChoice]:
        """The engines of each role that generates."""
        return {
            engine.role: engine for generation in self.generations for engine in generation.engines
        }


def apply_placement(
    problem: PlanningProblem, chosen: Mapping[str, RolePlacement] | None = None
) -> PlacedJob:
    """Apply a placement to a job.

    Args:
        problem: the planning problem.
        chosen: the devices of each role. None: as the manifest says.

    Raises:
        InvalidPlacement: groups that do not match the roles, their calls or the pools.
        NotOffered: a role that is trained and runs forward on different devices, several roles
            that generate on the same GPUs or on some of a pool's devices, or weights that would be
            copied between devices or engines.
        ManifestError: a training engine or a cut that a model does not have.
        DoesNotDivide: a cut that does not divide devices, heads or layers' width.
    """
    placement = chosen or requested_placement(problem)
    meshes = cut_meshes(problem, placement)
    check_offered(problem, placement)
    check_served(problem)
    check_copies(problem, meshes)
    groups = device_groups(problem.pools, placement)
    return PlacedJob(problem, placement, meshes, groups, is_chosen=chosen is not None)


def check_feasible(placed: PlacedJob, choice: MemoryChoice) -> FeasibleJob:
    """Check a memory choice against the devices, and decide how roles generate.

    Raises:
        DoesNotDivide: a fixed size of engines that does not divide.
        KvCacheTooSmall: a fixed cache below one longest sequence.
        DoesNotFit: more memory than a device has; the message shows the sum.
    """
    problem, pools = placed.problem, placed.problem.pools
    models = role_models(problem, placed.meshes, choice.micro_batch_tokens, choice.recomputed)
    static = [static_memory(problem, group, models, choice.offload) for group in placed.groups]
    loads = tuple(generation_loads(problem, pool, models, placed.placement) for pool in pools)
    generations = tuple(
        choose_generation(
            problem.fixed,
            pool,
            pool_loads,
            tuple(memory for memory in static if memory.group.pool == pool),
        )
        for pool, pool_loads in zip(pools, loads, strict=True)
    )
    return FeasibleJob(placed, choice, models, loads, generations)


def requested_placement(problem: PlanningProblem) -> Mapping[str, RolePlacement]:
    """The placement in the manifest."""
    placement, models = problem.fixed.placement, problem.models
    if placement.type in (PlacementType.SPLIT, PlacementType.STANDALONE):
        heads = {role: facts.head for role, facts in models.items()}
        sets = role_sets(placement.type, heads, problem.policy)
        copies = {role: facts.fixed.num_ranks for role, facts in models.items()}
        # Devices of a set hold full copies of its models; those of the first also full engines.
        multiples = set_multiples(sets, copies, problem.fixed.engine_tensor)
        return meshes_placement(set_meshes(problem, sets, multiples))
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
    """The feasible memory choice that is fastest by rule.

    Raises:
        DoesNotFit: no choice is feasible.
    """
    return _with_less_recomputation(_first_feasible(placed))


def _first_feasible(placed: PlacedJob) -> FeasibleJob:
    # The last choice needs the least memory, so its error is the one to report.
    *better, last = memory_choices(placed.problem, placed.groups)
    # Choices are in the order of their time, so the first feasible one is the fastest by rule.
    for choice in better:
        with suppress(DoesNotFit):
            return check_feasible(placed, choice)
    try:
        return check_feasible(placed, last)
    except DoesNotFit as error:
        raise DoesNotFit("\n".join([str(error), *tried(last)])) from error


def _with_less_recomputation(job: FeasibleJob) -> FeasibleJob:
    """Drop recomputation of each role that fits without it."""
    # A choice recomputes several roles at once, of which some may not need it. Engines stay as they
    # are: more memory for activations must not leave less for generation.
    for role in sorted(job.choice.chosen_to_recompute):
        choice = replace(job.choice, recomputed=job.choice.recomputed - {role})
        with suppress(DoesNotFit):
            other = check_feasible(job.placed, choice)
            job = other if other.engines == job.engines else job
    return job
