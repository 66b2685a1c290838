"""How each role's devices are cut for training and forward passes: by its engine, as the group that
places it says, or else its training.

FSDP shards over all of them. Megatron cuts the model over tensor ranks and pipeline stages, and
what is left of the devices are replicas. Whatever does not come out even is refused here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import lcm

from rlhf_api import RLHFJob
from rlhf_api.errors import ManifestError
from rlhf_api.plan import Mesh, Pool
from rlhf_api.problems import Problem
from rlhf_api.spec.model_cut import divisors
from rlhf_api.spec.models import CUT_RULES, TrainingParallelism
from rlhf_flow.errors import DoesNotDivide, InvalidPlacement
from rlhf_flow.planning.model_config import MEGATRON_FAMILIES
from rlhf_flow.planning.placement import CallPlace, RolePlace, describe_devices
from rlhf_flow.planning.shapes import DecoderShape


def copy_devices(job: RLHFJob, roles: Iterable[str]) -> int:
    """The fewest devices on which each of these roles has whole copies of its model; where all of
    them are, there is a multiple of it."""
    return lcm(*(job.spec.model_for(role).training.parallelism.num_ranks for role in roles))


def cut_meshes(
    job: RLHFJob,
    places: Mapping[str, RolePlace],
    shapes: Mapping[str, DecoderShape],
    pools: Sequence[Pool],
) -> Mapping[str, Mesh]:
    """The meshes of roles, cut as their training says.

    Args:
        job: the manifest.
        places: where each role with a model is.
        shapes: of their models.
        pools: all devices.

    Raises:
        ManifestError: a model of a family that Megatron's layers are not mapped for, or a cut that
            does not divide it.
        DoesNotDivide: a cut that does not divide a role's devices or those of a node.
        InvalidPlacement: tensor ranks that lie on two nodes because of the role's first device, or
            a cut of what FSDP trains.
    """
    megatron = [role for role in places if job.spec.model_for(role).uses_megatron]
    problems = [
        each for role in megatron for each in _problems(job, role, places[role], shapes[role])
    ]
    if problems:
        raise ManifestError(list(dict.fromkeys(problems)))
    by_name = {pool.name: pool for pool in pools}
    cut = {role: place.training.mesh for role, place in places.items()}
    for role, place in places.items():
        parallelism, field = _parallelism(job, role, place.training)
        if role not in megatron:
            _check_uncut(job, role, parallelism, field)
            continue
        cut[role] = _cut(role, cut[role], parallelism, field)
        _check_nodes(role, cut[role], by_name[cut[role].pool], field)
    return cut


def _parallelism(job: RLHFJob, role: str, place: CallPlace) -> tuple[TrainingParallelism, str]:
    """How a role's model is cut for training, and the field that says so: its group's, where that
    says something, or its training's."""
    parallelism = job.spec.model_for(role).training.parallelism.model_copy(update=place.cut)
    own = f"models.{_trained_as(job, role)}.training.parallelism"
    return parallelism, place.field if place.cut else own


def _trained_as(job: RLHFJob, role: str) -> str:
    """The entry of models that says how a role is trained: its own, or the actor's."""
    return role if role in job.spec.models else "actor"


def _check_uncut(job: RLHFJob, role: str, parallelism: TrainingParallelism, field: str) -> None:
    if parallelism.num_ranks > 1:
        raise InvalidPlacement(
            f"{field} cuts the model of {role}, which FSDP shards: got tensor "
            f"{parallelism.tensor} x pipeline {parallelism.pipeline} = {parallelism.num_ranks}, "
            f"allowed 1; write models.{_trained_as(job, role)}.training.engine: Megatron, or leave "
            "the cut out where the group is not for Generate alone"
        )


def _problems(job: RLHFJob, role: str, place: RolePlace, shape: DecoderShape) -> Iterator[Problem]:
    """What Megatron has no layers for, or what of a model does not come out even."""
    where = ("spec", "models", _trained_as(job, role))
    if shape.family is not None and shape.family not in MEGATRON_FAMILIES:
        yield Problem(
            (*where, "training", "engine"),
            f"Megatron's layers are not mapped for the model of {role}",
            got=f"model_type {shape.family}",
            allowed=", ".join(sorted(MEGATRON_FAMILIES)),
            do="write engine: FSDP, or add the family (docs/guides/add-a-model-family.md)",
        )
    model = job.spec.model_for(role)
    parallelism, _ = _parallelism(job, role, place.training)
    training = model.training.model_copy(update={"parallelism": parallelism})
    known = model.model_copy(update={"shape": shape, "training": training})
    for rule in CUT_RULES:
        for problem in rule.problems(known):
            size = problem.location[-1]
            in_group = ("spec", "placement", "groups", place.training.group or 0, size)
            at = in_group if size in place.training.cut else (*where, *problem.location)
            yield replace(problem, location=at)


def _cut(role: str, mesh: Mesh, parallelism: TrainingParallelism, field: str) -> Mesh:
    devices, size = mesh.num_devices, parallelism.num_ranks
    if devices % size:
        raise DoesNotDivide(
            f"the devices of {role} do not come out even: got {devices} for copies on "
            f"tensor {parallelism.tensor} x pipeline {parallelism.pipeline} = {size}, and "
            f"{devices} / {size} = {devices / size:.4g}; allowed multiples of {size}; give {role} "
            f"such a number of devices, or change {field}"
        )
    return mesh.model_copy(
        update={
            "data": devices // size,
            "tensor": parallelism.tensor,
            "pipeline": parallelism.pipeline,
        }
    )


def _check_nodes(role: str, mesh: Mesh, pool: Pool, field: str) -> None:
    """Refuse tensor ranks that are not all on one node: they talk within every layer."""
    per_node, tensor = pool.devices_per_node, mesh.tensor
    starts = range(mesh.ranks.start, mesh.ranks.stop, tensor)
    torn = [start for start in starts if start // per_node != (start + tensor - 1) // per_node]
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
