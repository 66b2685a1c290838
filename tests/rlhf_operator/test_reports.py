"""What the status takes over from a driver's reports, of which it believes little."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from rlhf_api.report import CheckpointReport, SavingReport, StatusReport
from rlhf_api.status import (
    CheckpointStatus,
    ConditionStatus,
    ConditionType,
    DriverStatus,
    ProgressStatus,
    RestartStatus,
    RLHFJobStatus,
)
from rlhf_operator.config import JobDefaults
from rlhf_operator.decide.decision import Draft
from rlhf_operator.decide.observed import Observed
from rlhf_operator.decide.reports import record_report
from rlhf_operator.decide.settings import Settings
from rlhf_operator.observe.parse import parse_job

from .world import manifest

NOW = datetime(2026, 1, 1, tzinfo=UTC)
DRIVER = DriverStatus(submission_id="sort-1-0", attempt=1, restart=0)
counts = st.integers(0, 2**31 - 1)
numbers = st.floats(0, allow_nan=False, allow_infinity=False)


def draft(status: RLHFJobStatus | None = None, now: datetime = NOW) -> Draft:
    document = manifest()
    document["metadata"] |= {
        "uid": "u-1",
        "resourceVersion": "1",
        "creationTimestamp": "2026-01-01T00:00:00Z",
    }
    document["status"] = (status or RLHFJobStatus()).model_dump(
        mode="json", by_alias=True, exclude_none=True
    )
    return Draft(Observed(parse_job(document, JobDefaults())), Settings(), now)


def report(**fields: Any) -> StatusReport:
    plain = {
        "job": "sort",
        "submission_id": "sort-1-0",
        "sequence": 5,
        "phase": "Train",
        "step": 2,
        "total_steps": 8,
    }
    return StatusReport(**{**plain, **fields})


def test_a_report_becomes_progress() -> None:
    made = draft()
    metrics = {"reward/mean": 0.123456, "actor/kl": 1e-7, "own/metric": 1.0}
    driver = record_report(made, DRIVER, report(metrics=metrics, tokens_per_second=1234.6))
    assert driver.sequence == 5
    progress = made.status.progress
    assert progress is not None
    assert (progress.step, progress.total_steps, progress.percent) == (2, 8, 25)
    assert (progress.reward, progress.tokens_per_second) == ("0.1235", 1235)
    assert progress.metrics == {"reward/mean": "0.1235", "actor/kl": "1e-07"}
    assert progress.last_report_time == NOW and progress.seconds_remaining is None


def test_reports_of_others_and_old_ones_say_nothing() -> None:
    known = DRIVER.model_copy(update={"sequence": 5})
    for old in (report(), report(sequence=4), report(submission_id="sort-0-9", sequence=9)):
        made = draft()
        assert record_report(made, known, old) is known
        assert made.status == RLHFJobStatus()


def test_a_takeover_is_told_once_however_many_drivers_report_it() -> None:
    first = draft()
    text = "the folder had been used by an earlier job of this name"
    record_report(first, DRIVER, report(takeover=text))
    decided = first.decision()
    assert decided.status.takeover == text
    (event,) = decided.events
    assert (event.reason, event.message, event.is_warning) == ("FolderTakenOver", text, False)
    # Of the next driver, and before the progress is due again.
    later = draft(decided.status)
    driver = DriverStatus(submission_id="sort-1-1", attempt=1, restart=1)
    record_report(later, driver, report(submission_id="sort-1-1", takeover=text))
    record_report(later, driver, report(submission_id="sort-1-1", sequence=6))
    assert later.decision().events == () and later.status.takeover == text


def written(seconds_ago: float) -> RLHFJobStatus:
    progress = ProgressStatus(
        phase="Train",
        step=1,
        total_steps=8,
        percent=12,
        last_report_time=NOW - timedelta(seconds=seconds_ago),
    )
    return RLHFJobStatus(progress=progress)


def test_progress_is_taken_every_15_seconds_but_a_checkpoint_and_the_end_at_once() -> None:
    made = draft(written(14))
    assert record_report(made, DRIVER, report()) is DRIVER
    assert record_report(draft(written(15)), DRIVER, report()).sequence == 5
    saved = report(checkpoint=CheckpointReport(step=2, path="/p"))
    assert record_report(draft(written(1)), DRIVER, saved).sequence == 5
    assert record_report(draft(written(1)), DRIVER, report(final=True, exit_code=0)).sequence == 5


def test_only_a_new_checkpoint_forgives_restarts() -> None:
    restarts = RestartStatus(drivers=3, total=3, since_checkpoint=2, in_a_row=3)
    before = RLHFJobStatus(restarts=restarts, checkpoint=CheckpointStatus(step=4, path="/4"))
    for step, counted, all in ((3, 2, 3), (4, 2, 3), (5, 0, 0)):
        made = draft(before)
        record_report(made, DRIVER, report(checkpoint=CheckpointReport(step=step, path="/n")))
        after = made.status.restarts
        assert (after.since_checkpoint, after.in_a_row, after.total) == (counted, all, 3)
        assert made.status.checkpoint is not None
        assert made.status.checkpoint.step == max(4, step)


def test_the_drivers_own_restarts_are_counted_once() -> None:
    made = draft()
    driver = record_report(made, DRIVER, report(restarts=2, steps_repeated=3))
    made.now += timedelta(seconds=60)
    driver = record_report(made, driver, report(sequence=6, restarts=3, steps_repeated=3))
    restarts = made.status.restarts
    assert (restarts.incarnations, restarts.total) == (3, 3)
    assert (restarts.since_checkpoint, restarts.in_a_row) == (3, 3)
    assert restarts.steps_repeated == 3 and driver.incarnations == 3


@given(st.lists(st.tuples(counts, counts, counts, counts, numbers), min_size=1, max_size=4))
@settings(derandomize=True, deadline=None)
def test_no_report_breaks_the_status(
    told: list[tuple[int, int, int, int, float]],
) -> None:
    status = RLHFJobStatus()
    for driver, (step, total, restarts, repeated, number) in enumerate(told):
        made = draft(status, NOW + timedelta(minutes=driver))
        said = report(
            submission_id=f"sort-1-{driver}",
            step=step,
            total_steps=total,
            restarts=restarts,
            steps_repeated=repeated,
            metrics={"reward/mean": -number, "actor/kl": number},
            seconds_remaining=step,
            tokens_per_second=number,
        )
        fresh = DRIVER.model_copy(update={"submission_id": said.submission_id})
        made.set(driver=record_report(made, fresh, said))
        status = made.decision().status  # it is validated
        assert status.restarts.total == status.restarts.incarnations


def failing(made: Draft) -> tuple[str, str] | None:
    """Reason and message of the condition."""
    found = made.snapshot.condition(ConditionType.CHECKPOINTS_FAILING)
    assert found is None or found.status is ConditionStatus.TRUE
    return None if found is None else (found.reason, found.message)


def events(made: Draft) -> list[tuple[str, str, bool]]:
    return [(event.reason, event.message, event.is_warning) for event in made.decision().events]


class Reports:
    """Reports of drivers, one every minute; the status goes on from one to the next."""

    def __init__(self) -> None:
        self.status = RLHFJobStatus()
        self._minutes = 0

    def take(self, driver: str, saving: SavingReport | None, checkpoint: int = 0) -> Draft:
        self._minutes += 1
        made = draft(self.status, NOW + timedelta(minutes=self._minutes))
        before = self.status.driver
        if before is None or before.submission_id != driver:
            before = DRIVER.model_copy(update={"submission_id": driver})
        saved = CheckpointReport(step=checkpoint, path="/p") if checkpoint else None
        said = report(submission_id=driver, sequence=self._minutes, saving=saving, checkpoint=saved)
        made.set(driver=record_report(made, before, said))
        self.status = made.decision().status
        return made


FULL = SavingReport(failures=2, reason="NoSpace", message="1 failed since step 5: no space")


def test_checkpoints_that_fail_are_a_condition_with_one_event_until_one_is_written() -> None:
    reports = Reports()
    assert events(reports.take("sort-1-0", None)) == []
    first = reports.take("sort-1-0", FULL.model_copy(update={"failures": 1}), checkpoint=4)
    assert failing(first) == ("NoSpace", "1 failed since step 5: no space")
    warning = "NoSpace: 1 failed since step 5: no space"
    assert events(first) == [("CheckpointsFailing", warning, True)]
    other = SavingReport(failures=2, reason="_odd", message="no route")
    second = reports.take("sort-1-0", other, checkpoint=4)
    assert failing(second) == ("Driver_odd", "no route") and events(second) == []
    saved = reports.take("sort-1-0", SavingReport(failures=2), checkpoint=8)
    assert failing(saved) is None
    text = "the job can save again; the newest checkpoint is that of step 8"
    assert events(saved) == [("CheckpointsSaved", text, False)]
    assert events(reports.take("sort-1-0", SavingReport(failures=2), checkpoint=8)) == []
    assert reports.status.checkpoint_failures == 2


def test_a_driver_that_starts_again_on_a_full_disk_ends_no_condition_and_counts_on() -> None:
    reports = Reports()
    reports.take("sort-1-0", FULL, checkpoint=4)
    fresh = reports.take("sort-1-1", None, checkpoint=4)
    assert failing(fresh) == ("NoSpace", FULL.message), "it has not tried yet"
    again = reports.take("sort-1-1", FULL.model_copy(update={"failures": 1}), checkpoint=4)
    assert events(again) == [] and reports.status.checkpoint_failures == 3
    # From the checkpoint that is left it may be at an earlier step than the one before it.
    assert failing(reports.take("sort-1-1", SavingReport(failures=1), checkpoint=2)) is None


def test_a_driver_of_an_earlier_release_ends_the_condition_by_its_next_checkpoint() -> None:
    reports = Reports()
    reports.take("sort-1-0", FULL, checkpoint=4)
    assert failing(reports.take("sort-1-1", None, checkpoint=4)) is not None
    assert failing(reports.take("sort-1-1", None, checkpoint=5)) is None


def test_the_time_of_a_checkpoint_is_when_it_was_first_reported() -> None:
    reports = Reports()
    for _ in range(2):
        reports.take("sort-1-0", None, checkpoint=4)
        saved = reports.status.checkpoint
        assert saved == CheckpointStatus(step=4, path="/p", time=NOW + timedelta(minutes=1))
