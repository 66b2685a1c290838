"""What the controller tells people through its one listener."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from rlhf_runtime.rewards.messages import RewardFault
from rlhf_runtime.rewards.scores import Failure
from rlhf_runtime.telemetry.plain_progress import PlainProgress
from rlhf_runtime.telemetry.records import EARLY_STOP, Outcome, StepRecord
from rlhf_runtime.telemetry.run_folder import RunFolder
from rlhf_runtime.telemetry.run_recorder import MAX_UNSCORED, RunRecorder
from rlhf_runtime.telemetry.samples import SampleKind, SampleTable, sample_table
from rlhf_runtime.telemetry.trackers import TrackerGroup

from .conftest import MakeRun, a_run
from .test_samples import a_sample


def told(folder: Path, **counts: int) -> list[str]:
    stream = io.StringIO()
    recorder = RunRecorder(RunFolder(folder), PlainProgress(stream), TrackerGroup({}))
    recorder.notice_data(counts)
    return stream.getvalue().splitlines()


def test_skipped_rows_are_told_of_both_splits(tmp_path: Path) -> None:
    lines = told(
        tmp_path,
        train=90,
        train_invalid=4,
        train_too_long=6,
        evaluation=0,
        evaluation_invalid=0,
        evaluation_too_long=5,
    )
    assert [line[line.index("data.") :] for line in lines] == [
        "data.train: 10 rows skipped (4 invalid, 6 with a prompt over rollout.maxPromptTokens); "
        "90 are used",
        "data.evaluation: 5 rows skipped (0 invalid, 5 with a prompt over "
        "rollout.maxPromptTokens); 0 are used",
    ]


def test_an_early_stop_is_the_reason_of_a_success_only(tmp_path: Path) -> None:
    text = "training ended early, after step 6 of 9"
    for outcome, reason in ((Outcome.SUCCEEDED, EARLY_STOP), (Outcome.FAILED, "ModelNotSaved")):
        stream = io.StringIO()
        folder = RunFolder(tmp_path / outcome.value)
        recorder = RunRecorder(folder, PlainProgress(stream), TrackerGroup({}))
        recorder.begin(a_run(tmp_path))
        recorder.stopped_early(text)
        recorder.end(outcome, *(() if outcome is Outcome.SUCCEEDED else (reason, "full")))
        recorder.close()
        end = folder.read().end
        assert end is not None and end.reason == reason
        assert end.message == (text if outcome is Outcome.SUCCEEDED else "full")
        assert f"notice {text}" in stream.getvalue() and f"reason={reason}" in stream.getvalue()
        shown = folder.report.read_text(encoding="utf-8")
        assert ("Training ended early, after step 6 of 9." in shown) == (
            outcome is Outcome.SUCCEEDED
        )


def test_workers_that_start_again_have_not_ended_early(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    recorder = RunRecorder(folder, PlainProgress(io.StringIO()), TrackerGroup({}))
    recorder.begin(a_run(tmp_path))
    recorder.stopped_early("training ended early, after step 6 of 9")
    recorder.begin(a_run(tmp_path))
    recorder.end(Outcome.SUCCEEDED)
    recorder.close()
    end = folder.read().end
    assert end is not None and (end.reason, end.message) == ("", "")


def test_an_evaluation_ends_without_summary_and_report(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    recorder = RunRecorder(folder, PlainProgress(io.StringIO()), TrackerGroup({}))
    recorder.begin(replace(a_run(tmp_path), total_steps=0))
    recorder.end(Outcome.FAILED, "DataNotFound", "no such file")
    recorder.close()
    end = folder.read().end
    assert end is not None and (end.outcome, end.reason) == (Outcome.FAILED, "DataNotFound")
    assert not folder.report.exists() and not folder.summary.exists()


def test_failures_of_one_kind_are_told_once_and_every_row_is_recorded_once(tmp_path: Path) -> None:
    """One line of code that raises with another text for each row is one kind."""
    trace = 'Traceback:\n  File "my.py", line 3, in score\n    deep()\nKeyError: {}'
    found = [
        Failure(RewardFault.RAISED, f"response {number}", f"row {row}", trace.format(row))
        for number, row in enumerate((1, 2, 1))
    ]
    found.append(Failure(RewardFault.NON_FINITE, "response 4", "row 1", "got nan"))
    stream = io.StringIO()
    recorder = RunRecorder(RunFolder(tmp_path), PlainProgress(stream), TrackerGroup({}))
    for step in (1, 2):
        for each in found:
            recorder.unscored(step, "exact", each)
    lines = stream.getvalue().splitlines()
    assert ["row 1" in line and "notice reward exact: " in line for line in lines] == [True, True]
    recorder.close()
    kept = recorder.folder.read().unscored
    assert [(each.fault, each.row) for each in kept] == [
        ("raised", "row 1"),
        ("raised", "row 2"),
        ("nonFinite", "row 1"),
    ]


def test_batches_that_have_scores_after_all_are_told_and_not_recorded(tmp_path: Path) -> None:
    """They leave room for rows that have none, and those are told, for all that the same was
    raised."""
    stream = io.StringIO()
    recorder = RunRecorder(RunFolder(tmp_path), PlainProgress(stream), TrackerGroup({}))
    for row in range(MAX_UNSCORED):
        batch = Failure(RewardFault.RAISED, "2 samples", f"row {row}", "why", only_together=True)
        recorder.unscored(1, "exact", batch)
    recorder.unscored(1, "exact", Failure(RewardFault.RAISED, "it", "row 7", "why"))
    recorder.close()
    lines = stream.getvalue().splitlines()
    assert ["2 samples to row 0" in line for line in lines] == [True, False]
    assert "it to row 7" in lines[1]
    assert [each.row for each in recorder.folder.read().unscored] == ["row 7"]


def test_records_of_failures_have_an_end(tmp_path: Path) -> None:
    recorder = RunRecorder(RunFolder(tmp_path), PlainProgress(io.StringIO()), TrackerGroup({}))
    for row in range(2 * MAX_UNSCORED):
        recorder.unscored(1, "exact", Failure(RewardFault.RAISED, "it", f"row {row}", "why"))
    recorder.close()
    assert len(recorder.folder.read().unscored) == MAX_UNSCORED


def test_nothing_is_told_where_all_rows_are_used(tmp_path: Path) -> None:
    assert told(tmp_path, train=90, train_invalid=0, train_too_long=0) == []


@pytest.mark.parametrize("outcome", [Outcome.INTERRUPTED, Outcome.SUCCEEDED])
def test_a_model_of_an_earlier_end_is_not_announced(make_run: MakeRun, outcome: Outcome) -> None:
    folder = make_run(3)
    folder.model.mkdir()
    stream = io.StringIO()
    recorder = RunRecorder(folder, PlainProgress(stream), TrackerGroup({}))
    recorder.end(outcome)
    assert (str(folder.model) in stream.getvalue()) is (outcome is Outcome.SUCCEEDED)


@pytest.mark.parametrize("has_samples", [False, True])
def test_samples_of_a_run_are_announced(make_run: MakeRun, has_samples: bool) -> None:
    folder = make_run(3)
    stream = io.StringIO()
    recorder = RunRecorder(folder, PlainProgress(stream), TrackerGroup({}))
    recorder.samples([a_sample()] if has_samples else [])
    recorder.end(Outcome.SUCCEEDED)
    assert (str(folder.samples) in stream.getvalue()) is has_samples


def test_samples_of_evaluations_reach_the_trackers_too(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    tracker = KeepsSamples()
    group = TrackerGroup({"kept": tracker})
    recorder = RunRecorder(folder, PlainProgress(io.StringIO()), group)
    step = [a_sample(10, SampleKind.STEP)]
    evaluation = [a_sample(25, SampleKind.EVALUATION)]
    for samples in (step, evaluation, []):
        recorder.samples(samples)
    recorder.close()
    assert folder.read_samples(SampleKind.STEP, 10) == step
    assert folder.read_samples(SampleKind.EVALUATION, 25) == evaluation
    assert tracker.tables == [(25, sample_table(evaluation))]
    assert group.failures == {"kept": 0}


class KeepsSamples:
    """A tracker that remembers tables."""

    def __init__(self) -> None:
        self.tables: list[tuple[int, SampleTable]] = []

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        raise AssertionError("no metrics here")

    def log_samples(self, step: int, table: SampleTable) -> None:
        self.tables.append((step, table))

    def close(self) -> None:
        pass


def test_a_success_waits_for_space_and_a_failure_does_not(tmp_path: Path) -> None:
    """Every record of a run is written in the end; a failed run has no use for a wait."""
    writes: list[int] = []

    def until_written(write: Callable[[], object]) -> None:
        writes.append(1)
        write()

    for outcome, waits in ((Outcome.SUCCEEDED, True), (Outcome.FAILED, False)):
        folder = RunFolder(tmp_path / outcome.value)
        progress = PlainProgress(io.StringIO())
        recorder = RunRecorder(folder, progress, TrackerGroup({}), until_written)
        recorder.begin(a_run(tmp_path))
        recorder.step(StepRecord(1, {}, {}, 1.0, 1))
        recorder.lines(1, {"pairs": b""})
        recorder.samples([a_sample()])
        assert len(writes) == 4
        writes.clear()
        recorder.end(outcome)
        # The end, the summary and the report.
        assert len(writes) == (3 if waits else 0)
        assert folder.summary.is_file() and folder.report.is_file()
        writes.clear()
