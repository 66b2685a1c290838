"""What a plan is to be best at, and so how many devices it takes."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from rlhf_api.base import Contract, PositiveFloat
from rlhf_api.rules import Found, Rule, found
from rlhf_api.spec.resources import Device

if TYPE_CHECKING:
    from rlhf_api.spec.job import RLHFJobSpec

_TYPE_MANUAL = "Manual"
"""`PlacementType.MANUAL`, whose module imports this one."""
_A_POOL_EACH = ("Split", "Standalone")


class ObjectiveType(StrEnum):
    """What a plan is to be best at."""

    STEP_TIME = "StepTime"
    """Least seconds per step, on all devices."""
    DEVICE_TIME = "DeviceTime"
    """Least device-seconds per step: devices that the plan takes, times seconds of a step."""
    FEWEST_DEVICES = "FewestDevices"
    """Fewest devices on which a step takes at most maxStepSeconds; of plans on as many the
    fastest."""


class PlacementObjective(Contract):
    """What the plan is to be best at, by the times that are expected."""

    type: ObjectiveType = ObjectiveType.STEP_TIME
    """StepTime, DeviceTime or FewestDevices. StepTime takes all devices; the others as many as are
    best, and leave the rest to others: not for Manual."""
    max_step_seconds: PositiveFloat | None = None
    """For FewestDevices: seconds that a step may take at most, as they are expected."""

    @property
    def takes_part(self) -> bool:
        """Whether the plan may take fewer devices than there are."""
        return self.type is not ObjectiveType.STEP_TIME


def _limit_is_there(spec: RLHFJobSpec) -> list[Found]:
    objective = spec.placement.objective
    is_wanted = objective.type is ObjectiveType.FEWEST_DEVICES
    return found(is_wanted and objective.max_step_seconds is None, "none")


def _limit_is_used(spec: RLHFJobSpec) -> list[Found]:
    objective = spec.placement.objective
    is_wanted = objective.type is ObjectiveType.FEWEST_DEVICES
    has_limit = objective.max_step_seconds is not None
    return found(has_limit and not is_wanted, objective.type.value)


def _groups_name_their_devices(spec: RLHFJobSpec) -> list[Found]:
    objective = spec.placement.objective
    is_manual = spec.placement.type.value == _TYPE_MANUAL
    return found(is_manual and objective.takes_part, objective.type.value)


def _one_pool_is_sized(spec: RLHFJobSpec) -> list[Found]:
    objective, kind = spec.placement.objective, spec.placement.type.value
    has_several = len(spec.resources.node_pools) > 1
    is_wrong = has_several and kind in _A_POOL_EACH and objective.takes_part
    return found(is_wrong, objective.type.value)


def _times_are_known(spec: RLHFJobSpec) -> list[Found]:
    objective = spec.placement.objective
    on_cpus = any(pool.device is Device.CPU for pool in spec.resources.node_pools)
    return found(on_cpus and objective.takes_part, objective.type.value)


_OBJECTIVE = "self.placement.objective"
_TAKES_ALL = f"{_OBJECTIVE}.type == 'StepTime'"
_POOLS = "self.resources.nodePools"
_AT = ".placement.objective"

OBJECTIVE_RULES: tuple[Rule, ...] = (
    Rule(
        holds=f"{_OBJECTIVE}.type != 'FewestDevices' || has({_OBJECTIVE}.maxStepSeconds)",
        what="objective FewestDevices without a limit of a step's time",
        do="add maxStepSeconds, or write type: DeviceTime",
        field=f"{_AT}.maxStepSeconds",
        check=_limit_is_there,
        reason="FieldValueRequired",
    ),
    Rule(
        holds=f"{_OBJECTIVE}.type == 'FewestDevices' || !has({_OBJECTIVE}.maxStepSeconds)",
        what="maxStepSeconds beside another objective",
        got=f"{_OBJECTIVE}.type",
        allowed="FewestDevices",
        do="write type: FewestDevices, or remove maxStepSeconds",
        field=f"{_AT}.maxStepSeconds",
        check=_limit_is_used,
    ),
    Rule(
        holds=f"self.placement.type != 'Manual' || {_TAKES_ALL}",
        what="an objective that chooses how many devices, beside groups that name theirs",
        got=f"{_OBJECTIVE}.type",
        allowed="StepTime",
        do="write placement.type: Auto, or remove the objective and give the groups fewer devices",
        field=f"{_AT}.type",
        check=_groups_name_their_devices,
    ),
    Rule(
        holds=f"{_POOLS}.size() <= 1 || !(self.placement.type in ['Split', 'Standalone']) || "
        f"{_TAKES_ALL}",
        what="an objective that chooses how many devices, beside several pools, of which each has "
        "a set of roles",
        got=f"{_OBJECTIVE}.type",
        allowed="StepTime",
        do="remove it, and give the pools fewer nodes, or leave one pool",
        field=f"{_AT}.type",
        check=_one_pool_is_sized,
    ),
    Rule(
        holds=f"{_POOLS}.all(pool, pool.device != 'CPU') || {_TAKES_ALL}",
        what="an objective that compares times, which are not known of processes on CPUs",
        got=f"{_OBJECTIVE}.type",
        allowed="StepTime",
        do="remove the objective, and set placement.maxDevices if it is to take fewer, or name "
        "pools of GPUs",
        field=f"{_AT}.type",
        check=_times_are_known,
    ),
)
"""They stand at the spec, as those of placements do."""
