"""Whether plans for some devices can be compared by their times. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from rlhf_api.plan import Pool
from rlhf_api.spec.objective import PlacementObjective
from rlhf_api.spec.resources import Device, NodePool
from rlhf_flow.errors import DevicesUnknown, TimesUnknown
from rlhf_flow.planning.seconds.given_hardware import pool_hardware


def require_comparable(pools: Sequence[Pool | NodePool]) -> None:
    """Check that the speed of devices is known, and that overlap gains something there.

    Raises:
        DevicesUnknown: it is not.
    """
    for pool in pools:
        if pool.device is Device.CPU:
            raise DevicesUnknown(
                "processes on CPUs share cores, so that plans which overlap gain nothing there: "
                "got device CPU, allowed GPUs whose rates are known; name pools of GPUs"
            )
        pool_hardware(pool)


def require_times(objective: PlacementObjective, pools: Sequence[Pool | NodePool]) -> None:
    """Check that an objective which compares times can be followed on some devices.

    Raises:
        TimesUnknown: there are no times of them.
    """
    try:
        require_comparable(pools)
    except DevicesUnknown as error:
        raise TimesUnknown(
            f"placement.objective {objective.type.value} compares times, and there are none to "
            f"compare: {error}; or write placement.objective.type: StepTime, with "
            "placement.maxDevices if the job is to take fewer devices"
        ).at("spec", "placement", "objective", "type") from error
