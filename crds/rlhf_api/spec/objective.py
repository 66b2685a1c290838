"""What a plan is to be best at, and so how many devices it takes."""

from __future__ import annotations

from enum import StrEnum

from rlhf_api.base import Contract, PositiveFloat


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
    def may_use_fewer_devices(self) -> bool:
        """Whether the plan may take fewer devices than there are."""
        return self.type is not ObjectiveType.STEP_TIME
