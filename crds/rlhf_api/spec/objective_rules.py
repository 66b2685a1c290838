"""Rules on combinations of the plan's objective with other fields."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlhf_api.cel_literals import text
from rlhf_api.rules import Rule, Violation, violation_if
from rlhf_api.spec.objective import ObjectiveType
from rlhf_api.spec.placement import PlacementType
from rlhf_api.spec.resources import Device
from rlhf_api.spec.rollout import StageFusionType

if TYPE_CHECKING:
    from rlhf_api.spec.job import RLHFJobSpec


def _has_step_limit(spec: RLHFJobSpec) -> list[Violation]:
    objective = spec.placement.objective
    needs_limit = objective.type is ObjectiveType.FEWEST_DEVICES
    return violation_if(needs_limit and objective.max_step_seconds is None, "none")


def _limit_is_used(spec: RLHFJobSpec) -> list[Violation]:
    objective = spec.placement.objective
    needs_limit = objective.type is ObjectiveType.FEWEST_DEVICES
    has_limit = objective.max_step_seconds is not None
    return violation_if(has_limit and not needs_limit, objective.type.value)


def _groups_name_their_devices(spec: RLHFJobSpec) -> list[Violation]:
    objective = spec.placement.objective
    is_manual = spec.placement.type is PlacementType.MANUAL
    return violation_if(is_manual and objective.may_use_fewer_devices, objective.type.value)


def _one_pool_is_sized(spec: RLHFJobSpec) -> list[Violation]:
    objective, kind = spec.placement.objective, spec.placement.type
    has_role_sets = kind in (PlacementType.SPLIT, PlacementType.STANDALONE)
    has_several = len(spec.resources.node_pools) > 1
    return violation_if(
        has_several and has_role_sets and objective.may_use_fewer_devices, objective.type.value
    )


def _times_can_be_estimated(spec: RLHFJobSpec) -> list[Violation]:
    objective = spec.placement.objective
    on_cpus = any(pool.device is Device.CPU for pool in spec.resources.node_pools)
    return violation_if(on_cpus and objective.may_use_fewer_devices, objective.type.value)


def _fusion_is_not_forced(spec: RLHFJobSpec) -> list[Violation]:
    is_forced = spec.rollout.stage_fusion is StageFusionType.ALWAYS
    objective = spec.placement.objective
    return violation_if(is_forced and objective.may_use_fewer_devices, objective.type.value)


_OBJECTIVE = "self.placement.objective"
_TAKES_ALL = f"{_OBJECTIVE}.type == 'StepTime'"
_POOLS = "self.resources.nodePools"
_AT = ".placement.objective"

# Rules of the spec. The reason is that of PLACEMENT_RULES.
OBJECTIVE_RULES: tuple[Rule, ...] = (
    # maxStepSeconds belongs to FewestDevices.
    Rule(
        holds=f"{_OBJECTIVE}.type != 'FewestDevices' || has({_OBJECTIVE}.maxStepSeconds)",
        what="objective FewestDevices without a limit on the time of a step",
        do="add maxStepSeconds, or write type: DeviceTime",
        field=f"{_AT}.maxStepSeconds",
        check=_has_step_limit,
        reason="FieldValueRequired",
    ),
    Rule(
        holds=f"{_OBJECTIVE}.type == 'FewestDevices' || !has({_OBJECTIVE}.maxStepSeconds)",
        what="maxStepSeconds with another objective",
        got=f"{_OBJECTIVE}.type",
        allowed="FewestDevices",
        do="write type: FewestDevices, or remove maxStepSeconds",
        field=f"{_AT}.maxStepSeconds",
        check=_limit_is_used,
    ),
    # The other objectives search over numbers of devices, so the number must be free and times must
    # be estimated.
    Rule(
        holds=f"self.placement.type != 'Manual' || {_TAKES_ALL}",
        what="an objective that chooses the number of devices, with groups that name theirs",
        got=f"{_OBJECTIVE}.type",
        allowed="StepTime",
        do="write placement.type: Auto, or remove the objective and give the groups fewer devices",
        field=f"{_AT}.type",
        check=_groups_name_their_devices,
    ),
    Rule(
        holds=f"{_POOLS}.size() <= 1 || !(self.placement.type in ['Split', 'Standalone']) || "
        f"{_TAKES_ALL}",
        what="an objective that chooses the number of devices, with several pools that each have a "
        "set of roles",
        got=f"{_OBJECTIVE}.type",
        allowed="StepTime",
        do="remove it, and give the pools fewer nodes, or leave one pool",
        field=f"{_AT}.type",
        check=_one_pool_is_sized,
    ),
    Rule(
        holds=f"{_POOLS}.all(pool, pool.device != 'CPU') || {_TAKES_ALL}",
        what="an objective that compares times, which cannot be estimated on CPUs",
        got=f"{_OBJECTIVE}.type",
        allowed="StepTime",
        do="remove the objective, and set placement.maxDevices to use fewer devices, or name pools "
        "of GPUs",
        field=f"{_AT}.type",
        check=_times_can_be_estimated,
    ),
    Rule(
        holds=f"self.rollout.stageFusion != {text(StageFusionType.ALWAYS)} || {_TAKES_ALL}",
        what="an objective that compares times, with a stage fusion that is forced",
        got=f"{_OBJECTIVE}.type",
        allowed="StepTime",
        do="write rollout.stageFusion: Auto, or remove the objective",
        field=f"{_AT}.type",
        check=_fusion_is_not_forced,
    ),
)
