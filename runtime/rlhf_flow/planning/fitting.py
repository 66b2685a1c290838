"""Whether a job fits on devices: where its roles are, and one way to compute there.

Placement says which ranks hold each model and which generate with it, training how it is cut, and a
`MemoryChoice` how they compute. What is decided here is generation: which ranks an engine spans,
how large its cache is, and whether it gives its memory back while others work.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rlhf_api import RLHFJob
from rlhf_api.plan import GraphName, Mesh, Pool
from rlhf_api.spec.placement import PlacementType, RoleCalls
from rlhf_flow.graph import Graph
from rlhf_flow.job_graphs import job_roles, policy_of
from rlhf_flow.planning.copies import check_copies
from rlhf_flow.planning.device_groups import DeviceGroup, device_groups
from rlhf_flow.planning.generation import (
    EngineChoice,
    GenerationChoice,
    Loads,
    choose_generation,
    generation_loads,
)
from rlhf_flow.planning.inventory import device_of, limit_devices
from rlhf_flow.planning.memory import RoleModel
from rlhf_flow.planning.memory_choices import MemoryChoice
from rlhf_flow.planning.offered import check_offered
from rlhf_flow.planning.placement import RolePlace, place_everywhere, place_roles
from rlhf_flow.planning.role_models import role_models
from rlhf_flow.planning.role_sets import place_sets, role_sets, set_multiples
from rlhf_flow.planning.served import check_served
from rlhf_flow.planning.shapes import DecoderShape
from rlhf_flow.planning.static_memory import MODEL_CALLS, static_memory
from rlhf_flow.planning.training_mesh import cut_meshes

Graphs = Mapping[GraphName, Graph]


@dataclass(frozen=True)
class PlacedJob:
    """A job and where its roles are."""

    job: RLHFJob
    graphs: Graphs
    shapes: Mapping[str, DecoderShape]
    """Of every role with a model."""
    pools: tuple[Pool, ...]
    """Devices that it takes."""
    places: Mapping[str, RolePlace]
    """Of every role with a model."""
    meshes: Mapping[str, Mesh]
    """Its ranks, cut as its training says."""
    groups: tuple[DeviceGroup, ...]
    """All devices, by what they hold."""


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


def place_job(
    job: RLHFJob,
    graphs: Graphs,
    devices: Sequence[Pool],
    shapes: Mapping[str, DecoderShape],
) -> PlacedJob:
    """Where a job's roles are.

    Args:
        job: the manifest.
        graphs: traced from it.
        devices: its pools, all of one kind; placement.maxDevices may take fewer.
        shapes: of every role with a model.

    Raises:
        InvalidPlacement: groups that do not fit the roles, their calls or the pools.
        NotOffered: a role that is trained and runs forward on different devices, several roles
            that generate on the same GPUs or on some of a pool's devices, or weights that would be
            copied between devices or engines.
        ManifestError: a training engine or a cut that a model does not have.
        DoesNotDivide: a cut that does not divide devices, heads or layers' width.
    """
    pools = tuple(limit_devices(pool, job.spec.placement) for pool in devices)
    places = _places(job, graphs, shapes, pools)
    meshes = cut_meshes(job, places, shapes, pools)
    check_offered(graphs, pools, places)
    check_served(graphs, shapes, device_of(pools))
    check_copies(graphs, meshes, shapes)
    return PlacedJob(job, graphs, shapes, pools, places, meshes, device_groups(pools, places))


def fit_job(placed: PlacedJob, choice: MemoryChoice) -> FittedJob:
    """How a job fits where it is, computing in one way.

    Raises:
        DoesNotDivide: a given size of engines that does not divide.
        KvCacheTooSmall: a given cache below one longest sequence.
        DoesNotFit: more memory than a device has; the message shows the sum.
    """
    job, graphs, pools = placed.job, placed.graphs, placed.pools
    models = role_models(
        job,
        graphs,
        device_of(pools),
        placed.meshes,
        placed.shapes,
        choice.micro_batch_tokens,
        choice.recomputed,
    )
    static = [static_memory(job, graphs, each, models, choice.offload) for each in placed.groups]
    loads = tuple(generation_loads(job, graphs, pool, models, placed.places) for pool in pools)
    generations = tuple(
        choose_generation(
            job, pool, of_pool, tuple(each for each in static if each.group.pool == pool)
        )
        for pool, of_pool in zip(pools, loads, strict=True)
    )
    return FittedJob(placed, choice, models, loads, generations)


def _places(
    job: RLHFJob,
    graphs: Graphs,
    shapes: Mapping[str, DecoderShape],
    pools: Sequence[Pool],
) -> Mapping[str, RolePlace]:
    """Where each role with a model is, by the manifest's placement."""
    kind = job.spec.placement.type
    if kind in (PlacementType.SPLIT, PlacementType.STANDALONE):
        roles = job_roles(graphs)
        sets = role_sets(kind, roles, policy_of(graphs[GraphName.STEP]))
        multiples = set_multiples(job, sets)
        return place_everywhere(place_sets(sets, roles, shapes, pools, multiples))
    return place_roles(job, {role: _kinds(graphs, role) for role in shapes}, pools)


def _kinds(graphs: Graphs, role: str) -> frozenset[RoleCalls]:
    """Of a role's calls."""
    calls = (call for graph in graphs.values() for call in graph.of_kind(*MODEL_CALLS))
    return frozenset(RoleCalls(call.kind.value) for call in calls if call.role == role)
