from collections.abc import Iterable, Iterator

import pytest

from rlhf_api.spec.schedule import ScheduleSpec
from rlhf_runtime.controller.training_passes import (
    PassKind,
    ResumePoint,
    SaveSchedule,
    ScheduledPass,
    keep_ahead,
    training_passes,
    until_stopped,
)

LETTERS = {PassKind.TRAIN: "t", PassKind.EVALUATE: "e", PassKind.SAVE: "s", PassKind.COMMIT: "c"}
NEVER = SaveSchedule(every_steps=0, at_start=False)


def words_of(passes: Iterable[ScheduledPass]) -> list[str]:
    """`t1` for a training step, `e0` for an evaluation, `s2` for a save, `c2` for its commit."""
    return [f"{LETTERS[one.kind]}{one.step}" for one in passes]


def schedule_of(steps: int, every: int = 0) -> ScheduleSpec:
    return ScheduleSpec(steps=steps, prompts_per_step=1, evaluate_every_steps=every)


@pytest.mark.parametrize(
    ("steps", "every", "expected"),
    [
        (3, 2, "e0 t1 t2 e2 t3 e3 s3 c3"),
        (4, 2, "e0 t1 t2 e2 t3 t4 e4 s4 c4"),
        (2, 0, "e0 t1 t2 e2 s2 c2"),
        (1, 5, "e0 t1 e1 s1 c1"),
    ],
)
def test_evaluations_frame_the_training(steps: int, every: int, expected: str) -> None:
    schedule = schedule_of(steps, every)
    assert words_of(training_passes(schedule, NEVER, evaluates=True)) == expected.split()
    without = [word for word in expected.split() if word[0] != "e"]
    assert words_of(training_passes(schedule, NEVER, evaluates=False)) == without


@pytest.mark.parametrize(
    ("saving", "expected"),
    [
        (SaveSchedule(2, at_start=False), "t1 t2 s2 t3 c2 t4 s4 t5 c4 s5 c5"),
        (SaveSchedule(2, at_start=True), "s0 t1 c0 t2 s2 t3 c2 t4 s4 t5 c4 s5 c5"),
        (SaveSchedule(1, at_start=False), "t1 s1 t2 c1 s2 t3 c2 s3 t4 c3 s4 t5 c4 s5 c5"),
        (SaveSchedule(5, at_start=False), "t1 t2 t3 t4 t5 s5 c5"),
    ],
)
def test_a_save_is_committed_after_the_next_step(saving: SaveSchedule, expected: str) -> None:
    assert words_of(training_passes(schedule_of(5), saving, evaluates=False)) == expected.split()


def test_a_checkpoint_that_found_no_space_is_tried_again_after_the_next_step() -> None:
    # It is asked where no checkpoint is due anyway: before step 1, and after steps 1 and 3.
    retries = iter([False, False, True])
    saving = SaveSchedule(2, at_start=False)
    passes = training_passes(
        schedule_of(5), saving, evaluates=False, retries_save=lambda: next(retries)
    )
    words = "t1 t2 s2 t3 c2 s3 t4 c3 s4 t5 c4 s5 c5"
    assert words_of(passes) == words.split()


@pytest.mark.parametrize("after", range(6))
def test_a_job_goes_on_with_what_comes_after_its_checkpoint(after: int) -> None:
    saving = SaveSchedule(1, at_start=True)
    everything = words_of(training_passes(schedule_of(5, 2), saving, evaluates=True))
    resume_from = ResumePoint(after, is_evaluated=True)
    rest = words_of(
        training_passes(schedule_of(5, 2), saving, evaluates=True, resume_from=resume_from)
    )
    expected = everything[everything.index(f"s{after}") + 1 :]
    expected.remove(f"c{after}")
    assert rest == expected


@pytest.mark.parametrize(
    ("step", "is_evaluated", "expected"),
    [(5, False, ["e5"]), (5, True, []), (4, False, ["t5", "e5", "s5", "c5"])],
)
def test_the_last_step_is_evaluated_even_if_it_lies_behind(
    step: int, is_evaluated: bool, expected: list[str]
) -> None:
    resume_from = ResumePoint(step, is_evaluated)
    assert words_of(training_passes(schedule_of(5), NEVER, True, resume_from)) == expected
    without = [word for word in expected if word[0] != "e"]
    assert words_of(training_passes(schedule_of(5), NEVER, False, resume_from)) == without


@pytest.mark.parametrize(
    ("stop_after", "expected"),
    [
        (0, "e0"),
        (1, "e0 t1 s1 c1"),
        (2, "e0 t1 t2 e2 s2 c2"),
        (3, "e0 t1 t2 e2 s2 t3 c2 s3 c3"),
        (9, "e0 t1 t2 e2 s2 t3 c2 t4 e4 s4 c4"),
    ],
)
def test_a_stop_saves_the_step_that_it_waits_for(stop_after: int, expected: str) -> None:
    sent: list[str] = []
    passes = training_passes(schedule_of(4, 2), SaveSchedule(2, at_start=False), evaluates=True)

    def is_stop_requested() -> bool:
        return sum(word[0] == "t" for word in sent) >= stop_after

    for one in until_stopped(passes, is_stop_requested):
        sent.extend(words_of([one]))
    assert sent == expected.split()


@pytest.mark.parametrize(
    ("end", "expected"),
    [
        (0, "e0 s0 c0"),
        (2, "e0 t1 t2 e2 s2 c2"),
        (3, "e0 t1 t2 e2 t3 s3 t4 c3 e4 t5 e5 s5 c5"),
        (4, "e0 t1 t2 e2 t3 s3 t4 c3 e4 s4 c4"),
    ],
)
def test_training_ends_early_after_an_evaluation_with_its_state_saved(
    end: int, expected: str
) -> None:
    schedule, saving = schedule_of(5, 2), SaveSchedule(3, at_start=False)
    asked: list[int] = []

    def ends_early(step: int) -> bool:
        asked.append(step)
        return step == end

    passes = training_passes(schedule, saving, evaluates=True, ends_early=ends_early)
    assert words_of(passes) == expected.split()
    assert asked == [int(word[1:]) for word in expected.split() if word[0] == "e"]


def test_a_job_that_had_ended_early_has_no_passes_left() -> None:
    schedule = schedule_of(5, 2)
    for is_evaluated, expected in ((True, ""), (False, "t3 t4 e4 s4 c4")):
        resume_from = ResumePoint(2, is_evaluated)
        passes = training_passes(schedule, NEVER, True, resume_from, lambda step: step in (2, 4))
        assert words_of(passes) == expected.split()


def test_what_decides_is_complete_before_anything_else_is_sent() -> None:
    events: list[str] = []

    def sending() -> Iterator[int]:
        for number in range(5):
            events.append(f"+{number}")
            yield number

    keep_ahead(sending(), lambda number: events.append(f"-{number}"), 2, lambda number: number == 2)
    assert events == ["+0", "+1", "+2", "-0", "-1", "-2", "+3", "+4", "-3", "-4"]


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
