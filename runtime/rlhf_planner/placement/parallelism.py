"""How each role's devices are cut for training and forward passes: by its engine, as the group that
places it says, or else its training.

FSDP shards over all of them. Megatron cuts the model over tensor ranks and pipeline stages, and
what is left of the devices are replicas. Whatever does not come out even is refused here.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

from rlhf_api.errors import ManifestError
from rlhf_api.plan import Mesh, Pool
from rlhf_api.plan_text import describe_devices
from rlhf_api.problems import Problem
from rlhf_api.spec.model_cut import divisors, uneven_pipeline, uneven_tensor
from rlhf_api.spec.models import CUT_RULES
from rlhf_flow.errors import DoesNotDivide, InvalidPlacement
from rlhf_planner.placement.placement import CallPlace, RolePlace
from rlhf_planner.problem.problem import ModelFacts, PlanningProblem
from rlhf_sizing.config import MEGATRON_FAMILIES


class _Cut(NamedTuple):
    """How a role's model is cut for training, and the field that says so: its group's, where that
    says something, or its training's."""

    tensor: int
    """Ranks over which each layer is cut."""
    pipeline: int
    """Stages over which the layers are distributed."""
    field: str
    """What says it."""

    @property
    def num_ranks(self) -> int:
        """Devices that hold the model once."""
        return self.tensor * self.pipeline


def cut_meshes(problem: PlanningProblem, places: Mapping[str, RolePlace]) -> Mapping[str, Mesh]:
    """The meshes of roles, cut as their training says.

    Args:
        problem: what is planned.
        places: where each role with a model is.

    Raises:
        ManifestError: a model of a family that Megatron's layers are not mapped for, or a cut that
            does not divide it.
        DoesNotDivide: a cut that does not divide a role's devices or those of a node.
        InvalidPlacement: tensor ranks that lie on two nodes because of the role's first device, or
            a cut of what FSDP trains.
    """
    megatron = [facts for facts in problem.models.values() if facts.uses_megatron]
    problems = [each for facts in megatron for each in _problems(facts, places[facts.role])]
    if problems:
        raise ManifestError(list(dict.fromkeys(problems)))
    by_name = {pool.name: pool for pool in problem.pools}
    meshes = {role: place.training.mesh for role, place in places.items()}
    for role, place in places.items():
        facts = problem.models[role]
        cut = _cut_of(facts, place.training)
        if not facts.uses_megatron:
            _check_uncut(facts, cut)
            continue
        meshes[role] = _cut_mesh(role, meshes[role], cut)
        _check_nodes(role, meshes[role], by_name[meshes[role].pool], cut.field)
    return meshes


def _cut_of(facts: ModelFacts, place: CallPlace) -> _Cut:
    tensor = place.tensor or facts.fixed.tensor or 1
    pipeline = place.pipeline or facts.fixed.pipeline or 1
    own = f"models.{facts.trained_as}.training.parallelism"
    return _Cut(tensor, pipeline, place.field if place.cut else own)


def _check_uncut(facts: ModelFacts, cut: _Cut) -> None:
    if cut.num_ranks > 1:
        raise InvalidPlacement(
            f"{cut.field} cuts the model of {facts.role}, which FSDP shards: got tensor "
            f"{cut.tensor} x pipeline {cut.pipeline} = {cut.num_ranks}, "
            f"allowed 1; write models.{facts.trained_as}.training.engine: Megatron, or leave "
            "the cut out where the group is not for Generate alone"
        )


def _problems(facts: ModelFacts, place: RolePlace) -> Iterator[Problem]:
    """What Megatron has no layers for, or what of a model does not come out even."""
    where, family = ("spec", "models", facts.trained_as), facts.shape.family
    if family is not None and family not in MEGATRON_FAMILIES:
        yield Problem(
            (*where, "training", "engine"),
            f"Megatron's layers are not mapped for the model of {facts.role}",
            got=f"model_type {family}",
            allowed=", ".join(sorted(MEGATRON_FAMILIES)),
            do="write engine: FSDP, or add the family (docs/guides/add-a-model-family.md)",
        )
    cut = _cut_of(facts, place.training)
    uneven = (uneven_tensor(facts.shape, cut.tensor), uneven_pipeline(facts.shape, cut.pipeline))
    for rule, found in zip(CUT_RULES, uneven, strict=True):
        for each in found:
            size = each.at[-1]
            in_group = ("spec", "placement", "groups", place.training.group or 0, size)
            at = in_group if size in place.training.cut else (*where, *each.at)
            yield replace(rule.problem_for(each), location=at)


def _cut_mesh(role: str, mesh: Mesh, cut: _Cut) -> Mesh:
    devices, size = mesh.num_devices, cut.num_ranks
    if devices % size:
        raise DoesNotDivide(
            f"the devices of {role} do not come out even: got {devices} for copies on "
            f"tensor {cut.tensor} x pipeline {cut.pipeline} = {size}, and "
            f"{devices} / {size} = {devices / size:.4g}; allowed multiples of {size}; give {role} "
            f"such a number of devices, or change {cut.field}"
        )
    return mesh.model_copy(
        update={"data": devices // size, "tensor": cut.tensor, "pipeline": cut.pipeline}
    )


def torn_groups(ranks: range, tensor: int, devices_per_node: int) -> list[int]:
    """First ranks of the groups of tensor ranks that lie on two nodes, before they lie on nodes as
    the first ones do again."""
    period = math.lcm(tensor, devices_per_node)
    return [
        start
        for start in range(ranks.start, min(ranks.stop, ranks.start + period), tensor)
        if start // devices_per_node != (start + tensor - 1) // devices_per_node
    ]


def _check_nodes(role: str, mesh: Mesh, pool: Pool, field: str) -> None:
    """Refuse tensor ranks that are not all on one node: they talk within every layer."""
    per_node, tensor = pool.devices_per_node, mesh.tensor
    torn = torn_groups(mesh.ranks, tensor, per_node)
    if not torn:
        return
    where = describe_devices(range(torn[0], torn[0] + tensor), pool.name)
    if per_node % tensor:
        raise DoesNotDivide(
            f"tensor ranks of {role} lie on two nodes: got tensor {tensor} on {where}, with "
            f"{per_node} on a node, and {per_node} / {tensor} = {per_node / tensor:.4g}; allowed "
            f"for these nodes {divisors(per_node)}; change {field}.tensor"
        )
    raise InvalidPlacement(
        f"tensor ranks of {role} lie on two nodes: got tensor {tensor} on {where}, with {per_node} "
        f"on a node, as the first of all its devices is {mesh.first_rank}; allowed a multiple of "
        f"{tensor}; write placement.type: Manual with such a firstDevice, or change {field}.tensor"
    )
