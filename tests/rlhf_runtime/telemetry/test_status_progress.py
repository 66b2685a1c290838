"""What happens in a run becomes its report."""

from __future__ import annotations

import math

import pytest

from rlhf_api.exits import ExitCode
from rlhf_api.report import CheckpointReport, RunPhase, SavingProblem, SavingReport
from rlhf_runtime.telemetry.records import EvaluationRecord, RunRecord, StepRecord, WarmStartRecord
from rlhf_runtime.telemetry.status_board import StatusBoard, StatusProgress, reportable


@pytest.fixture
def board() -> StatusBoard:
    return StatusBoard("sort", "sort-1-0")


@pytest.fixture
def progress(board: StatusBoard) -> StatusProgress:
    """Of a run that has begun."""
    progress = StatusProgress(board)
    progress.begin(RunRecord("sort", "GRPO", "1 CPU rank", "/rlhf/run", 10, 0.0))
    return progress


def step(number: int, **metrics: float) -> StepRecord:
    return StepRecord(number, {"reward/mean": 0.5, **metrics}, {}, 2.0, 100)


def test_a_step_is_told_with_metrics_pace_and_the_time_that_is_left(
    board: StatusBoard, progress: StatusProgress
) -> None:
    progress.step(step(4, **{"throughput/tokens_per_second": 50.0, "actor/kl": math.nan}))
    report = board.latest
    assert (report.phase, report.step, report.total_steps) == ("Train", 4, 10)
    assert report.metrics == {"reward/mean": 0.5, "throughput/tokens_per_second": 50.0}
    assert (report.seconds_remaining, report.tokens_per_second) == (12.0, 50.0)


def test_an_evaluation_is_told_beside_the_steps_that_follow(
    board: StatusBoard, progress: StatusProgress
) -> None:
    progress.evaluation(EvaluationRecord(0, {"evaluation/exact_match": 0.25}))
    progress.step(step(1))
    assert board.latest.metrics == {"evaluation/exact_match": 0.25, "reward/mean": 0.5}


def test_a_warm_start_is_a_phase_without_steps(
    board: StatusBoard, progress: StatusProgress
) -> None:
    progress.warm_start(WarmStartRecord(3, {"actor/loss": 1.5}))
    report = board.latest
    assert (report.phase, report.step, report.metrics) == ("WarmStart", 0, {"actor/loss": 1.5})
    assert report.message == "step 3 of the warm start"


def test_a_restart_has_a_reason_until_workers_come_to_life(
    board: StatusBoard, progress: StatusProgress
) -> None:
    progress.step(step(5))
    progress.saved(4, "/rlhf/run/checkpoints/step-00000004")
    progress.restarting(1, 30.0, "WorkerLost", "rank 0 died:\nkilled")
    assert (board.latest.phase, board.latest.reason) == ("Restart", "WorkerLost")
    assert board.latest.message == "rank 0 died: killed"
    progress.resumed(4, "/rlhf/run/checkpoints/step-00000004")
    progress.notice("waiting for nodes: 0 of 1")
    report = board.latest
    assert (report.step, report.reason) == (4, "WorkerLost")
    assert (report.restarts, report.steps_repeated) == (1, 1)
    assert report.message == "waiting for nodes: 0 of 1"
    assert report.checkpoint == CheckpointReport(step=4, path="/rlhf/run/checkpoints/step-00000004")
    progress.startup("libraries", 2.0)
    assert board.latest.reason is None


def test_every_change_has_a_higher_number_until_the_last(
    board: StatusBoard, progress: StatusProgress
) -> None:
    before = board.latest
    progress.step(step(1))
    assert board.latest.sequence > before.sequence
    final = board.end(RunPhase.FAILED, ExitCode.RETRIABLE, "WorkerLost", "x" * 9000)
    assert final.final and final.exit_code is ExitCode.RETRIABLE and len(final.message) == 4096
    progress.notice("too late")
    assert board.latest == final


def test_only_the_final_report_can_be_acknowledged(board: StatusBoard) -> None:
    assert board.acknowledge("sort-1-0", board.latest.sequence)
    assert not board.wait_until_acknowledged(0.0)
    final = board.end(RunPhase.SUCCEEDED, ExitCode.DONE)
    assert board.acknowledge("sort-1-0", final.sequence - 1)
    assert not board.acknowledge("sort-1-1", final.sequence)
    assert not board.wait_until_acknowledged(0.0)
    assert board.acknowledge("sort-1-0", final.sequence)
    assert board.wait_until_acknowledged(0.0)


def test_metrics_that_a_report_cannot_hold_are_left_out() -> None:
    many = {f"reward/{number:04d}": 1.0 for number in range(400)}
    assert len(reportable(many)) == 256
    assert reportable({"with blank": 1.0, "inf": math.inf, "reward/a": 2.0}) == {"reward/a": 2.0}


def test_checkpoints_that_fail_are_told_until_one_is_written(
    board: StatusBoard, progress: StatusProgress
) -> None:
    assert board.latest.saving is None, "nothing was tried yet"
    progress.not_saved(5, SavingProblem.NO_SPACE, "no space\nfor 5")
    progress.not_saved(10, SavingProblem.WRITE_FAILED, "no route")
    saving = board.latest.saving
    assert saving is not None and (saving.failures, saving.reason) == (2, "WriteFailed")
    assert saving.message == "2 failed since step 5: no route"
    progress.step(step(11))
    assert board.latest.saving == saving
    progress.saved(15, "/run/checkpoints/step-15")
    assert board.latest.saving == SavingReport(failures=2)
    progress.not_saved(20, SavingProblem.NO_SPACE, "no space")
    saving = board.latest.saving
    assert saving is not None and saving.failures == 3
    assert saving.message == "1 failed since step 20: no space"


def test_a_wait_for_space_is_told_and_its_end(board: StatusBoard, progress: StatusProgress) -> None:
    progress.not_saved(5, SavingProblem.WRITE_FAILED, "no route")
    before = board.latest.saving
    progress.waiting_for_space("waiting for space")
    report = board.latest
    assert report.saving == SavingReport(failures=1, reason="NoSpace", message="waiting for space")
    assert (report.reason, report.message) == ("NoSpace", "waiting for space")
    progress.waiting_for_space("")
    assert board.latest.saving == before and board.latest.reason is None
