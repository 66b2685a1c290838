"""Whether a job fits on devices: where its roles are, and one way to compute there.

Placement says which ranks hold each model and which generate with it, training how it is cut, and a
`MemoryChoice` how they compute. What is decided here is generation: which ranks an engine spans,
how large its cache is, and whether it gives its memory back while others work.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rlhf_api.plan import Mesh
from rlhf_api.spec.placement import PlacementType, RoleCalls
from rlhf_flow.planning.copies import check_copies
from rlhf_flow.planning.device_groups import DeviceGroup, device_groups
from rlhf_flow.planning.generation import choose_generation
from rlhf_flow.planning.generation_choice import EngineChoice, GenerationChoice
from rlhf_flow.planning.generation_loads import Loads, generation_loads
from rlhf_flow.planning.memory import RoleModel
from rlhf_flow.planning.memory_choices import MemoryChoice
from rlhf_flow.planning.offered import check_offered
from rlhf_flow.planning.placement import RolePlace, place_everywhere, place_roles
from rlhf_flow.planning.problem import PlanningProblem
from rlhf_flow.planning.role_models import role_models
from rlhf_flow.planning.role_sets import place_sets, role_sets, set_multiples
from rlhf_flow.planning.served import check_served
from rlhf_flow.planning.static_memory import MODEL_CALLS, static_memory
from rlhf_flow.planning.training_mesh import cut_meshes


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
