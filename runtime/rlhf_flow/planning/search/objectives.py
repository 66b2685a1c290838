"""What makes one plan better than another: how many devices it takes, and how long its steps are.
Pure."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, nextafter
from typing import Protocol

from rlhf_api.spec.objective import ObjectiveType, PlacementObjective

Score = tuple[float, float]
"""Of a plan: less is better. It never falls where steps get longer on as many devices."""
WORST: Score = (inf, inf)
"""Of what is no plan."""


class Objective(Protocol):
    """What a plan is to be best at."""

    def score(self, devices: int, step_seconds: float) -> Score:
        """Of a plan on so many devices with such steps."""

    def below_seconds(self, devices: int, best: Score) -> float:
        """Steps on so many devices score better than the best only if they take less than this."""


@dataclass(frozen=True)
class LeastStepTime:
    """Shortest steps, on any number of devices."""

    def score(self, devices: int, step_seconds: float) -> Score:
        """See `Objective`."""
        return (step_seconds, 0.0) if step_seconds < inf else WORST

    def below_seconds(self, devices: int, best: Score) -> float:
        """See `Objective`."""
        return best[0]


@dataclass(frozen=True)
class LeastDeviceTime:
    """Least devices x seconds of a step."""

    def score(self, devices: int, step_seconds: float) -> Score:
        """See `Objective`."""
        return (devices * step_seconds, 0.0) if step_seconds < inf else WORST

    def below_seconds(self, devices: int, best: Score) -> float:
        """See `Objective`; rounded up, so that steps that take as long score no better."""
        return nextafter(best[0] / devices, inf)


@dataclass(frozen=True)
class FewestDevices:
    """Fewest devices on which a step takes so long at most; then shortest steps."""

    max_step_seconds: float

    def score(self, devices: int, step_seconds: float) -> Score:
        """See `Objective`; steps that take longer are no plans."""
        return (devices, step_seconds) if step_seconds <= self.max_step_seconds else WORST

    def below_seconds(self, devices: int, best: Score) -> float:
        """See `Objective`."""
        fewest, seconds = best
        if devices > fewest:
            return 0.0
        return seconds if devices == fewest else nextafter(self.max_step_seconds, inf)


def objective_of(asked: PlacementObjective) -> Objective:
    """An objective that the manifest asks for."""
    if asked.type is ObjectiveType.FEWEST_DEVICES:
        assert asked.max_step_seconds is not None, "a rule of the manifest"
        return FewestDevices(asked.max_step_seconds)
    return LeastDeviceTime() if asked.type is ObjectiveType.DEVICE_TIME else LeastStepTime()
