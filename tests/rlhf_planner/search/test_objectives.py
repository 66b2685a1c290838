"""Scores of plans, and the steps that a better plan has to have."""

from __future__ import annotations

from math import inf

from hypothesis import given
from hypothesis import strategies as st

from rlhf_api.spec.objective import PlacementObjective
from rlhf_planner.search.pool_size import (
    WORST,
    FewestDevices,
    MinDeviceTime,
    MinStepTime,
    Objective,
    objective_of,
)

OBJECTIVES = st.sampled_from([MinStepTime(), MinDeviceTime(), FewestDevices(2.5)])
DEVICES = st.integers(1, 1024)
SECONDS = st.floats(0.001, 1000.0) | st.just(inf) | st.just(2.5)


@given(OBJECTIVES, DEVICES, SECONDS, DEVICES, SECONDS)
def test_only_steps_below_the_limit_score_better(
    objective: Objective, devices: int, seconds: float, others: int, best: float
) -> None:
    score = objective.score(others, best)
    if objective.score(devices, seconds) < score:
        assert seconds < objective.below_seconds(devices, score)


@given(OBJECTIVES, DEVICES, SECONDS, SECONDS)
def test_longer_steps_on_as_many_devices_score_no_better(
    objective: Objective, devices: int, one: float, other: float
) -> None:
    less, more = sorted((one, other))
    assert objective.score(devices, less) <= objective.score(devices, more)
    assert objective.score(devices, inf) == WORST


def test_each_prefers_what_its_name_says() -> None:
    plans = {"few": (8, 40.0), "more": (16, 19.0), "most": (64, 8.0)}

    def best(**asked: object) -> str:
        objective = objective_of(PlacementObjective.model_validate(asked))
        return min(plans, key=lambda name: objective.score(*plans[name]))

    assert best(type="StepTime") == "most"
    assert best(type="DeviceTime") == "more", "16 x 19 < 8 x 40 < 64 x 8"
    assert best(type="FewestDevices", maxStepSeconds=40) == "few"
    assert best(type="FewestDevices", maxStepSeconds=39) == "more"
    assert best(type="FewestDevices", maxStepSeconds=10) == "most"
