"""Cut each role's devices for training and forward passes, by its training engine.

FSDP shards over all devices. Megatron cuts the model over tensor ranks and pipeline stages; the
remaining factor is replicas. The manifest fixes a cut in the role's group of `placement` or in its
`training`. A cut that does not divide the model or the devices is refused here.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace

from rlhf_api.errors import ManifestError
from rlhf_api.mesh import Mesh
from rlhf_api.plan import Pool
from rlhf_api.plan_text import describe_devices
from rlhf_api.problems import Problem
from rlhf_api.spec.model_cut import divisors, uneven_pipeline, uneven_tensor
from rlhf_api.spec.models import CUT_RULES
from rlhf_flow.errors import DoesNotDivide, InvalidPlacement
from rlhf_planner.placement.strategy import Cut, EngineStrategy, RoleStrategy
from rlhf_planner.problem.problem import Constraints, PlanningProblem, RoleSpec
from rlhf_sizing.config import MEGATRON_FAMILIES


def cut_roles(
    problem: PlanningProblem, roles: Mapping[str, RoleStrategy]
) -> Mapping[str, RoleStrategy]:
    """Complete the cuts of roles: what is open and not fixed by the manifest is 1.

    Raises:
        ManifestError: a model of a family that Megatron's layers are not mapped for, or a cut that
            does not divide it.
        DoesNotDivide: a cut that does not divide a role's devices or those of a node.
        InvalidPlacement: tensor ranks on two nodes because of the role's first device, or a cut of
            a model that FSDP trains.
    """
    megatron = [facts for facts in problem.models.values() if facts.uses_megatron]
    problems = [
        problem_ for facts in megatron for problem_ in _problems(problem, facts, roles[facts.role])
    ]
    if problems:
        # Several roles may have the same training settings, so their problems are the same.
        raise ManifestError(list(dict.fromkeys(problems)))
    by_name = {pool.name: pool for pool in problem.pools}
    cut_of = {
        role: strategy.with_cut(_cut_of(problem.models[role], strategy))
        for role, strategy in roles.items()
    }
    for role, strategy in cut_of.items():
        facts = problem.models[role]
        in_group = any(fixed_sizes(problem.fixed, strategy))
        field = (
            f"placement.groups[{strategy.group}]"
            if in_group
            else f"models.{facts.trained_as}.training.parallelism"
        )
        if not facts.uses_megatron:
            _check_uncut(facts, strategy.cut, field)
            continue
        _check_copies(role, strategy, field)
        _check_nodes(role, strategy.mesh, by_name[strategy.devices.pool], field)
    return cut_of


def fixed_sizes(
    fixed: Constraints, strategy: RoleStrategy | EngineStrategy
) -> tuple[int | None, int | None]:
    """Tensor ranks and stages that the group of `placement` fixes for its devices."""
    if strategy.group is None:
        return None, None
    group = fixed.placement.groups[strategy.group]
    return group.tensor, group.pipeline


def engine_size_field(fixed: Constraints, engines: EngineStrategy) -> str | None:
    """The field of the manifest that fixes the size of engines. None: it is open."""
    in_group, _ = fixed_sizes(fixed, engines)
    if in_group is not None:
        return f"placement.groups[{engines.group}].tensor"
    return None if fixed.engine_tensor is None else "rollout.parallelism.tensor"


def _cut_of(facts: RoleSpec, strategy: RoleStrategy) -> Cut:
    return Cut(
        strategy.tensor or facts.fixed.tensor or 1, strategy.pipeline or facts.fixed.pipeline or 1
    )


def _check_uncut(facts: RoleSpec, cut: Cut, field: str) -> None:
    if cut.num_ranks > 1:
        raise InvalidPlacement(
            f"{field} cuts the model of {facts.role}, which FSDP shards: got tensor "
            f"{cut.tensor} x pipeline {cut.pipeline} = {cut.num_ranks}, "
            f"allowed 1; write models.{facts.trained_as}.training.engine: Megatron, or leave "
            "the cut out where the group is not for Generate alone"
        )


def _problems(
    problem: PlanningProblem, facts: RoleSpec, strategy: RoleStrategy
) -> Iterator[Problem]:
    """Layers that Megatron cannot map, and dimensions that a cut does not divide."""
    where, family = ("spec", "models", facts.trained_as), facts.shape.family
    if family is not None and family not in MEGATRON_FAMILIES:
        yield Problem(
            (*where, "training", "engine"),
            f"Megatron's layers are not mapped for the model of {facts.role}",
            got=f"model_type {family}",
            allowed=", ".join(sorted(MEGATRON_FAMILIES)),
            do="write engine: FSDP, or add the family (docs/guides/add-a-model-family.md)",
        )
    cut = _cut_of(facts, strategy)
    uneven = (uneven_tensor(facts.shape, cut.tensor), uneven_pipeline(facts.shape, cut.pipeline))
    in_group = zip(CUT_RULES, uneven, fixed_sizes(problem.fixed, strategy), strict=True)
    for rule, uneven_fields, fixed_size in in_group:
        for uneven_field in uneven_fields:
            # The error names the field that fixed the size: that of the group, if it has one.
            at = (
                (*where, *uneven_field.at)
                if fixed_size is None
                else ("spec", "placement", "groups", strategy.group or 0, uneven_field.at[-1])
            )
            yield replace(rule.problem_for(uneven_field), location=at)


def _check_copies(role: str, strategy: RoleStrategy, field: str) -> None:
    """Refuse devices that are no full copies of the model."""
    devices, cut, size = strategy.devices.num_devices, strategy.cut, strategy.cut.num_ranks
    if devices % size:
        raise DoesNotDivide(
            f"the devices of {role} do not come out even: got {devices} for copies on "
            f"tensor {cut.tensor} x pipeline {cut.pipeline} = {size}, and "
            f"{devices} / {size} = {devices / size:.4g}; allowed multiples of {size}; give {role} "
            f"such a number of devices, or change {field}"
        )


def torn_groups(ranks: range, tensor: int, devices_per_node: int) -> list[int]:
    """First ranks of the tensor groups that cross nodes, within one period of groups and nodes."""
    # The pattern of groups and nodes repeats after this many ranks.
    period = math.lcm(tensor, devices_per_node)
    return [
        start
        for start in range(ranks.start, min(ranks.stop, ranks.start + period), tensor)
        if start // devices_per_node != (start + tensor - 1) // devices_per_node
    ]


def _check_nodes(role: str, mesh: Mesh, pool: Pool, field: str) -> None:
    """Refuse tensor groups that cross nodes."""
    # Tensor ranks exchange activations in every layer, which is slow between nodes.
    per_node, tensor = pool.devices_per_node, mesh.tensor
    torn = torn_groups(mesh.ranks, tensor, per_node)
    if not torn:
        return
    where = describe_devices(range(torn[0], torn[0] + tensor), pool.name)
    if per_node % tensor:
        # Aligned groups cross no node only if their size divides the devices of a node.
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
