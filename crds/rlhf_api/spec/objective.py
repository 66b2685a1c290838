"""The objective of a plan, which may decide the number of devices."""

from __future__ import annotations

from enum import StrEnum

from rlhf_api.base import Contract, PositiveFloat


class ObjectiveType(StrEnum):
    """Quantity that the plan minimizes."""

    STEP_TIME = "StepTime"
    """Seconds per step, on all devices."""
    DEVICE_TIME = "DeviceTime"
    """Device-seconds per step: number of devices in use times seconds of a step."""
    FEWEST_DEVICES = "FewestDevices"
    """Number of devices on which a step takes at most maxStepSeconds; of plans with this number,
    the fastest."""


class PlacementObjective(Contract):
    """Objective of the plan, by expected times."""

    type: ObjectiveType = ObjectiveType.STEP_TIME
    """StepTime, DeviceTime or FewestDevices. StepTime uses all devices. The others use the best
    number and leave the rest unused; they are not allowed with type Manual."""
    max_step_seconds: PositiveFloat | None = None
    """For FewestDevices: longest expected step, in seconds."""

    @property
    def may_use_fewer_devices(self) -> bool:
        """True if the plan may use fewer devices than available."""
        return self.type is not ObjectiveType.STEP_TIME
