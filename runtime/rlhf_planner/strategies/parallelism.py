"""Ways to cut the models of a placement, and sizes of its engines. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import NamedTuple

from rlhf_api.plan import Mesh, Pool
from rlhf_api.spec.model_cut import uneven_pipeline, uneven_tensor
from rlhf_planner.memory.engine_size import is_possible, possible_sizes
from rlhf_planner.placement.parallelism import torn_groups
from rlhf_planner.placement.placement import CallPlace, RolePlace
from rlhf_planner.problem.problem import ModelFacts, PlanningProblem
from rlhf_planner.strategies.placements import Placement
from rlhf_sizing.shape import DecoderShape


class Cut(NamedTuple):
    """Of a model that is trained or run forward."""

    tensor: int
    """Ranks over which each layer is cut."""
    pipeline: int
    """Stages over which the layers are distributed."""


def cuts(facts: ModelFacts, place: CallPlace, pool: Pool) -> tuple[Cut, ...]:
    """The ways to cut a role's model on its devices; one where that is decided.

    Args:
        facts: of the role.
        place: its devices.
        pool: theirs.
    """
    tensor = place.tensor or facts.fixed.tensor
    pipeline = place.pipeline or facts.fixed.pipeline
    if not facts.uses_megatron:
        return (Cut(tensor or 1, pipeline or 1),)
    num_devices = place.mesh.num_devices
    tensors = [tensor] if tensor else _tensors(facts, pool, place.mesh)
    pipelines = [pipeline] if pipeline else _pipelines(facts, num_devices)
    return tuple(
        Cut(*each) for each in product(tensors, pipelines) if num_devices % (each[0] * each[1]) == 0
    )


def _tensors(facts: ModelFacts, pool: Pool, mesh: Mesh) -> list[int]:
    """Sizes that divide the devices and the model, and with which tensor ranks share a node."""
    return [
        size
        for size in range(1, pool.devices_per_node + 1)
        if mesh.num_devices % size == 0
        and not any(uneven_tensor(facts.shape, size))
        and not torn_groups(mesh.ranks, size, pool.devices_per_node)
    ]


def _pipelines(facts: ModelFacts, num_devices: int) -> list[int]:
    """Divisors of the devices that divide the layers."""
    return [
        size
        for size in range(1, facts.shape.num_layers + 1)
        if num_devices % size == 0 and not any(uneven_pipeline(facts.shape, size))
    ]


def engine_tensors(
    problem: PlanningProblem, facts: ModelFacts, place: CallPlace, pool: Pool
) -> tuple[int, ...]:
    """Ranks that a generation engine of a role may span; one where that is decided,
    none where it does not divide these devices.

    Args:
        problem: what is planned.
        facts: of the role.
        place: the devices that generate.
        pool: theirs.
    """
    decided = place.tensor or problem.fixed.engine_tensor
    if decided is None:
        return possible_sizes(pool, place.mesh, facts.shape)
    return (decided,) if is_possible(decided, pool, place.mesh, facts.shape) else ()


def cut_place(place: CallPlace, cut: Cut) -> CallPlace:
    """The devices of a role, with its model cut there."""
    return replace(place, tensor=cut.tensor, pipeline=cut.pipeline, is_chosen=True)


def uncut(placement: Placement) -> Placement:
    """The devices of a placement, without its cuts and sizes of engines."""
    return {
        role: RolePlace(CallPlace(place.training.mesh), CallPlace(place.generation.mesh))
        for role, place in placement.items()
    }


def with_layout(
    placement: Placement, cut_of: Mapping[str, Cut], tensor_of: Mapping[str, int]
) -> Placement:
    """A placement with models cut and engines sized.

    Args:
        placement: where roles are.
        cut_of: each role with a model.
        tensor_of: ranks of an engine of each role that generates.
    """
    return {
        role: RolePlace(
            cut_place(place.training, cut_of[role]),
            _sized_engines(place.generation, tensor_of[role])
            if role in tensor_of
            else cut_place(place.training, cut_of[role]),
        )
        for role, place in placement.items()
    }


def _sized_engines(place: CallPlace, tensor: int) -> CallPlace:
    is_chosen = place.tensor is None
    return replace(place, tensor=tensor, pipeline=None, is_chosen=is_chosen)


def cut_mesh(mesh: Mesh, cut: Cut) -> Mesh:
    """Devices with a model cut there."""
    size = cut.tensor * cut.pipeline
    return mesh.model_copy(
        update={
            "data": mesh.num_devices // size,
            "tensor": cut.tensor,
            "pipeline": cut.pipeline,
        }
    )


def possible_cuts(devices: Sequence[Pool], shapes: Sequence[DecoderShape]) -> list[tuple[int, int]]:
    """Tensor ranks and stages in powers of two that devices and models allow; for each number of
    both together that with most tensor ranks, as these share activations, too."""
    per_node = min(pool.devices_per_node for pool in devices)
    total = min(pool.num_devices for pool in devices)
    powers = [2**k for k in range(total.bit_length())]
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
