from collections.abc import Iterator

import pytest

from rlhf_api.plan import GraphName
from rlhf_api.schedule import ScheduleSpec
from rlhf_runtime.controller.passes import PassAt, keep_ahead, training_passes


def steps_of(passes: Iterator[PassAt]) -> list[str]:
    """`s1` for a training step, `e0` for an evaluation."""
    return [f"{'s' if one.graph is GraphName.STEP else 'e'}{one.step}" for one in passes]


@pytest.mark.parametrize(
    ("steps", "every", "expected"),
    [
        (3, 2, "e0 s1 s2 e2 s3 e3"),
        (4, 2, "e0 s1 s2 e2 s3 s4 e4"),
        (2, 0, "e0 s1 s2 e2"),
        (1, 5, "e0 s1 e1"),
    ],
)
def test_evaluations_frame_the_training(steps: int, every: int, expected: str) -> None:
    schedule = ScheduleSpec(steps=steps, prompts_per_step=1, evaluate_every_steps=every)
    assert steps_of(training_passes(schedule, evaluates=True)) == expected.split()
    without = [one for one in expected.split() if one[0] == "s"]
    assert steps_of(training_passes(schedule, evaluates=False)) == without


@pytest.mark.parametrize(
    ("ahead", "expected"),
    [
        (0, "+0 -0 +1 -1 +2 -2 +3 -3"),
        (1, "+0 +1 -0 +2 -1 +3 -2 -3"),
        (2, "+0 +1 +2 -0 +3 -1 -2 -3"),
        (9, "+0 +1 +2 +3 -0 -1 -2 -3"),
    ],
)
def test_so_many_are_sent_before_one_is_waited_for(ahead: int, expected: str) -> None:
    events: list[str] = []

    def sending() -> Iterator[int]:
        for number in range(4):
            events.append(f"+{number}")
            yield number

    keep_ahead(sending(), lambda number: events.append(f"-{number}"), ahead)
    assert events == expected.split()


def test_nothing_is_sent_after_a_failure() -> None:
    sent: list[int] = []

    def sending() -> Iterator[int]:
        for number in range(9):
            sent.append(number)
            yield number

    def fail(number: int) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        keep_ahead(sending(), fail, 1)
    assert sent == [0, 1]
