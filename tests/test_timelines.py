"""Overlapping calls of a timeline."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlhf_runtime.telemetry.records import Span, StepRecord
from rlhf_runtime.telemetry.run_folder import RunFolder

from .timelines import overlapping_steps

Times = tuple[float, float]


def write(folder: Path, *steps: tuple[Times, Times], process: str = "rank 1") -> Path:
    """Write a run of steps in which an actor and a critic train."""
    with RunFolder(folder) as run:
        for number, (actor, critic) in enumerate(steps, start=1):
            spans = (
                Span("rank 0", "actor", "generate", 0.0, 9.0),
                Span("rank 0", "actor", "train", *actor),
                Span(process, "critic", "train", *critic),
            )
            run.append(StepRecord(number, {}, {}, seconds=1.0, tokens=1, spans=spans))
    return folder


def test_steps_whose_calls_ran_at_the_same_time(tmp_path: Path) -> None:
    after, before, inside, later = (2.0, 3.0), (0.0, 1.0), (1.2, 1.4), (1.9, 3.0)
    others = (after, before, inside, later)
    folder = write(tmp_path, *(((1.0, 2.0), other) for other in others))
    assert overlapping_steps(folder, "actor.train", "critic.train") == [3, 4]
    assert overlapping_steps(folder, "critic.train", "actor.train") == [3, 4]


def test_calls_of_one_process_or_none_are_no_answer(tmp_path: Path) -> None:
    together = write(tmp_path / "together", ((1.0, 2.0), (1.0, 2.0)), process="rank 0")
    with pytest.raises(AssertionError, match="critic.train"):
        overlapping_steps(together, "actor.train", "critic.train")
    separate = write(tmp_path / "separate", ((1.0, 2.0), (1.0, 2.0)))
    with pytest.raises(AssertionError, match=r"step 1 has no actor.train or no critic.values"):
        overlapping_steps(separate, "actor.train", "critic.values")
