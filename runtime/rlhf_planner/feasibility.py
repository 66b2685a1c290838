"""Whether a job fits on devices: where its roles are, and one way to compute there.

Placement says which ranks hold each model and which generate with it, training how it is cut, and a
`MemoryChoice` how they compute. What is decided here is generation: which ranks an engine spans,
how large its cache is, and whether it gives its memory back while others work.

A plan without a comparison of times: the first way to compute that fits, of those in the order
of the time that they take by rule (memory_choices.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

from rlhf_api.plan import Mesh
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
    RolePlace,
    device_groups,
    place_everywhere,
    place_roles,
)
from rlhf_planner.placement.role_sets import place_sets, role_sets, set_multiples
from rlhf_planner.placement.validation import check_copies, check_offered, check_served
from rlhf_planner.problem.problem import PlanningProblem


@dataclass(frozen=True)
class PlacedJob:
    """A job and where its roles are."""

    problem: PlanningProblem
    """The job."""
    places: Mapping[str, RolePlace]
    """Of every role with a model."""
    meshes: Mapping[str, Mesh]
    """Its ranks, cut as its training says."""
    groups: tuple[DeviceGroup, ...]
    """All devices, by what they hold."""
    is_chosen: bool = False
    """Whether that, and the ways to compute there, are chosen by time."""


@dataclass(frozen=True)
class FittedJob:
    """A placed job that fits, and how."""

    placed: PlacedJob
    choice: MemoryChoice
    models: tuple[RoleModel, ...]
    """Every role with a model."""
    loads: tuple[Loads, ...]
    """Of each pool: what is asked of the engines there."""
    generations: tuple[GenerationChoice, ...]
    """Of each pool: how roles generate there."""

    @property
    def engines(self) -> dict[str, EngineChoice]:
        """Of each role that generates."""
        return {engine.role: engine for each in self.generations for engine in each.engines}


def place_job(problem: PlanningProblem, chosen: Mapping[str, RolePlace] | None = None) -> PlacedJob:
    """Where a job's roles are.

    Args:
        problem: what is planned.
        chosen: where they are. None: as placement says.

    Raises:
        InvalidPlacement: groups that do not fit the roles, their calls or the pools.
        NotOffered: a role that is trained and runs forward on different devices, several roles
            that generate on the same GPUs or on some of a pool's devices, or weights that would be
            copied between devices or engines.
        ManifestError: a training engine or a cut that a model does not have.
        DoesNotDivide: a cut that does not divide devices, heads or layers' width.
    """
    places = chosen or places_of(problem)
    meshes = cut_meshes(problem, places)
    check_offered(problem, places)
    check_served(problem)
    check_copies(problem, meshes)
    groups = device_groups(problem.pools, places)
    return PlacedJob(problem, places, meshes, groups, is_chosen=chosen is not None)


def fit_job(placed: PlacedJob, choice: MemoryChoice) -> FittedJob:
    """How a job fits where it is, computing in one way.

    Raises:
        DoesNotDivide: a given size of engines that does not divide.
        KvCacheTooSmall: a given cache below one longest sequence.
        DoesNotFit: more memory than a device has; the message shows the sum.
    """
    problem, pools = placed.problem, placed.problem.pools
    models = role_models(problem, placed.meshes, choice.micro_batch_tokens, choice.recomputed)
    static = [static_memory(problem, each, models, choice.offload) for each in placed.groups]
    loads = tuple(generation_loads(problem, pool, models, placed.places) for pool in pools)
    generations = tuple(
        choose_generation(
            problem.fixed, pool, of_pool, tuple(each for each in static if each.group.pool == pool)
        )
        for pool, of_pool in zip(pools, loads, strict=True)
    )
    return FittedJob(placed, choice, models, loads, generations)


def places_of(problem: PlanningProblem) -> Mapping[str, RolePlace]:
    """Where each role with a model is, by what placement says."""
    placement, models = problem.fixed.placement, problem.models
    if placement.type in (PlacementType.SPLIT, PlacementType.STANDALONE):
        heads = {role: facts.head for role, facts in models.items()}
        sets = role_sets(placement.type, heads, problem.policy)
        copies = {role: facts.fixed.num_ranks for role, facts in models.items()}
        multiples = set_multiples(sets, copies, problem.fixed.engine_tensor)
        return place_everywhere(place_sets(problem, sets, multiples))
    return place_roles(placement, {role: _kinds(problem, role) for role in models}, problem.pools)


def _kinds(problem: PlanningProblem, role: str) -> frozenset[RoleCalls]:
    """Of a role's calls."""
    calls = (
        call for graph in problem.graphs.values() for call in graph.calls_of_kind(*MODEL_CALLS)
    )
    return frozenset(RoleCalls(call.kind.value) for call in calls if call.role == role)


def first_that_fits(problem: PlanningProblem) -> FittedJob:
    """The first way to compute that fits, where placement says; for errors see `plan_problem`."""
    return first_way_that_fits(place_job(problem))


def first_way_that_fits(placed: PlacedJob) -> FittedJob:
    """The way to compute that takes least time, by rule, of those that fit.

    Raises:
        DoesNotFit: none does.
    """
    return _with_less_recomputation(_first_that_fits(placed))


def _first_that_fits(placed: PlacedJob) -> FittedJob:
    *better, last = memory_choices(placed.problem, placed.groups)
    for choice in better:
        with suppress(DoesNotFit):
            return fit_job(placed, choice)
    try:
        return fit_job(placed, last)
    except DoesNotFit as error:
        raise DoesNotFit("\n".join([str(error), *tried(last)])) from error


def _with_less_recomputation(found: FittedJob) -> FittedJob:
    """The same where roles keep their activations that need not recompute them."""
    for role in sorted(found.choice.chosen_to_recompute):
        choice = replace(found.choice, recomputed=found.choice.recomputed - {role})
        with suppress(DoesNotFit):
            other = fit_job(found.placed, choice)
            found = other if other.engines == found.engines else found
    return found
