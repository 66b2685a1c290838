"""A notice after steps in which no response counts in a loss."""

from __future__ import annotations

from rlhf_runtime.controller.steps import PassResult
from rlhf_runtime.controller.untrained_steps import NUM_STEPS, UntrainedSteps

LEFT_OUT = {"actor/empty_updates": 1.0, "response/masked": 30.0, "response/empty": 0.25}


def notices(*steps: dict[str, float], is_unscored: bool = False) -> list[str]:
    detector = UntrainedSteps()
    return [
        detector.record_step(number, PassResult(metrics, {}, (), 1.0, 1, {}, (), is_unscored))
        for number, metrics in enumerate(steps, 1)
    ]


def test_steps_without_an_update_are_told_once() -> None:
    *before, told, after = notices(*[LEFT_OUT] * (NUM_STEPS + 1))
    assert not any(before) and not after
    assert told.startswith(f"no response counts in a loss in the {NUM_STEPS} steps up to 5, so")
    assert "rollout.onStop masks 30 and leaves out 0, and 25% are empty" in told


def test_an_update_among_them_starts_the_count_anew() -> None:
    updated = LEFT_OUT | {"critic/gradient_norm": 0.5}
    steps = [*[LEFT_OUT] * (NUM_STEPS - 1), updated, *[LEFT_OUT] * NUM_STEPS]
    assert [bool(told) for told in notices(*steps)] == [False] * (len(steps) - 1) + [True]


def test_steps_with_an_update_or_without_a_score_are_none() -> None:
    assert not any(notices(*[{"response/masked": 30.0}] * 9))
    assert not any(notices(*[LEFT_OUT] * 9, is_unscored=True))
