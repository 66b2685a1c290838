"""Cuts of the models of a placement, and sizes of its engines. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import NamedTuple

from rlhf_api.mesh import Mesh
from rlhf_api.plan import Pool
from rlhf_api.spec.model_cut import uneven_pipeline, uneven_tensor
from rlhf_planner.memory.engine_size import is_possible, possible_sizes
from rlhf_planner.placement.parallelism import torn_groups
from rlhf_planner.placement.placement import CallPlacement, RolePlacement
from rlhf_planner.problem.problem import PlanningProblem, RoleSpec
from rlhf_planner.strategies.placements import Placement
from rlhf_sizing.shape import DecoderShape


class Cut(NamedTuple):
    """Parallelism of a model that is trained or run forward."""

    tensor: int
    """Ranks over which each layer is cut."""
    pipeline: int
    """Stages over which the layers are distributed."""


def cuts(facts: RoleSpec, call_placement: CallPlacement, pool: Pool) -> tuple[Cut, ...]:
    """Possible cuts of a role's model on its devices; exactly one if it is fixed.

    Args:
        facts: of the role.
        call_placement: its devices.
        pool: of these devices.
    """
    tensor = call_placement.tensor or facts.fixed.tensor
    pipeline = call_placement.pipeline or facts.fixed.pipeline
    if not facts.uses_megatron:
        # FSDP cuts no model. `cut_meshes` refuses a fixed cut, with the field to change.
        return (Cut(tensor or 1, pipeline or 1),)
    num_devices = call_placement.mesh.num_devices
    tensors = [tensor] if tensor else _tensors(facts, pool, call_placement.mesh)
    pipelines = [pipeline] if pipeline else _pipelines(facts, num_devices)
    return tuple(
        Cut(*pair) for pair in product(tensors, pipelines) if num_devices % (pair[0] * pair[1]) == 0
    )


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


def engine_tensors(
    problem: PlanningProblem, facts: RoleSpec, call_placement: CallPlacement, pool: Pool
) -> tuple[int, ...]:
    """Possible ranks per engine of a role; one if it is fixed, none if that does not divide the
    devices.

    Args:
        facts: of the role.
        call_placement: the devices that generate.
        pool: of these devices.
    """
    fixed_tensor = call_placement.tensor or problem.fixed.engine_tensor
    if fixed_tensor is None:
        return possible_sizes(pool, call_placement.mesh, facts.shape)
    return (
        (fixed_tensor,) if is_possible(fixed_tensor, pool, call_placement.mesh, facts.shape) else ()
    )


def with_cut(call_placement: CallPlacement, cut: Cut) -> CallPlacement:
    """The devices of a role, with its model cut."""
    return replace(call_placement, tensor=cut.tensor, pipeline=cut.pipeline, is_chosen=True)


def uncut(placement: Placement) -> Placement:
    """The devices of a placement, without cuts and sizes of engines."""
    return {
        role: RolePlacement(
            CallPlacement(role_placement.training.mesh),
            CallPlacement(role_placement.generation.mesh),
        )
        for role, role_placement in placement.items()
    }


def with_layout(
    placement: Placement, cut_of: Mapping[str, Cut], tensor_of: Mapping[str, int]
) -> Placement:
    """A placement with models cut and engines sized.

    Args:
        placement: the devices of each role.
        cut_of: per role with a model.
        tensor_of: ranks of an engine, per role that generates.
    """
    # A role that does not generate has the same devices and cut for all calls.
    return {
        role: RolePlacement(
            with_cut(role_placement.training, cut_of[role]),
            _sized_engines(role_placement.generation, tensor_of[role])
            if role in tensor_of
            else with_cut(role_placement.training, cut_of[role]),
        )
        for role, role_placement in placement.items()
    }


def _sized_engines(call_placement: CallPlacement, tensor: int) -> CallPlacement:
    # A size that the manifest fixes is not the planner's choice.
    is_chosen = call_placement.tensor is None
    return replace(call_placement, tensor=tensor, pipeline=None, is_chosen=is_chosen)


def cut_mesh(mesh: Mesh, cut: Cut) -> Mesh:
    """A mesh of the same devices with a model cut."""
    size = cut.tensor * cut.pipeline
    return mesh.model_copy(
        update={
            "data": mesh.num_devices // size,
            "tensor": cut.tensor,
            "pipeline": cut.pipeline,
        }
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
