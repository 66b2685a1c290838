"""Progress, checkpoints, failures to save and restarts of the status, from a driver's reports."""

from __future__ import annotations

from collections.abc import Mapping

from rlhf_api.report import REWARD_MEAN, StatusReport
from rlhf_api.status import (
    CheckpointStatus,
    ConditionStatus,
    ConditionType,
    DriverStatus,
    ProgressStatus,
    RLHFJobStatus,
)
from rlhf_operator.decide.decision import Draft, Restart
from rlhf_operator.decide.disruptions import has_container_failed
from rlhf_operator.decide.predicates import Snapshot

SHOWN_METRICS = {
    REWARD_MEAN,
    "evaluation/reward_mean",
    "evaluation/exact_match",
    "response/length_mean",
    "response/truncated",
    "time/step",
}
"""Metrics in the status, if the job has them; metrics.jsonl has all."""
SHOWN_ROLE_METRICS = {"mean", "std", "kl", "loss", "accuracy", "entropy", "gradient_norm"}
"""Metrics of every role in the status: `<role>/loss` and so on."""
MAX_METRICS = 64
"""Metrics in the status at most."""

WORKERS_REPLACED = "WorkersReplaced"
"""Reason of a driver's own restart if the driver reported none."""
CHECKPOINTS_SAVED = "CheckpointsSaved"
"""Reason of the event that checkpoints no longer fail."""
MAX_REASONS = 16
"""Reasons of restarts in the status at most, with the one that others share."""
OTHER = "Other"
"""Reason of restarts whose own is not counted any more."""
MAX_RESTARTS = 10**9
"""Upper bound of a counter: a driver's numbers must not overflow the status."""


def record_report(draft: Draft, driver: DriverStatus, report: StatusReport) -> DriverStatus:
    """Write a driver's new report into the status; return the driver's new status."""
    last = driver.sequence
    # A head may serve the report of an earlier driver, or the same report again.
    if report.submission_id != driver.submission_id or (
        last is not None and report.sequence <= last
    ):
        return driver
    _record_takeover(draft, report)
    has_checkpoint = has_new_checkpoint(draft.status, report)
    if has_checkpoint:
        _record_checkpoint(draft, report)
    if not (has_checkpoint or report.final or is_progress_due(draft.snapshot)):
        return driver
    driver = _count_restarts(draft, driver, report)
    driver = _record_saving(draft, driver, report, has_checkpoint)
    draft.set(progress=_progress(report, draft.snapshot))
    return driver.model_copy(update={"sequence": report.sequence})


def is_progress_due(state: Snapshot) -> bool:
    """True if the progress in the status is old enough to be written again."""
    before = state.status.progress
    if before is None:
        return True
    return state.seconds_since(before.last_report_time) >= state.settings.progress_seconds


def has_new_checkpoint(status: RLHFJobStatus, report: StatusReport) -> bool:
    """True if the report has a later checkpoint than the status."""
    before, new = status.checkpoint, report.checkpoint
    return new is not None and (before is None or new.step > before.step)


def _record_takeover(draft: Draft, report: StatusReport) -> None:
    # Later drivers of the job report it, too: the first one may have ended before it was read.
    if report.takeover is not None and report.takeover != draft.status.takeover:
        draft.set(takeover=report.takeover)
        draft.record_event("FolderTakenOver", report.takeover)


def _record_checkpoint(draft: Draft, report: StatusReport) -> None:
    # Restarts are limited between two checkpoints: a new one starts the count again.
    restarts = draft.status.restarts.model_copy(
        update={"since_checkpoint": 0, "disruptions_since_checkpoint": 0, "in_a_row": 0}
    )
    new = report.checkpoint
    assert new is not None
    saved = CheckpointStatus(step=new.step, path=new.path, time=draft.now)
    draft.set(checkpoint=saved, restarts=restarts)


def _record_saving(
    draft: Draft, driver: DriverStatus, report: StatusReport, has_checkpoint: bool
) -> DriverStatus:
    """Write whether the driver can save into the condition, and count what it could not."""
    saving = report.saving
    if saving is None:
        # A driver that has not tried yet knows nothing; one of an earlier release never reports it.
        if has_checkpoint:
            end_checkpoints_failing(draft)
        return driver
    total = draft.status.checkpoint_failures
    more = _increase(saving.failures, driver.checkpoint_failures, total)
    draft.set(checkpoint_failures=total + more)
    if saving.reason is None:
        end_checkpoints_failing(draft)
    else:
        reason = valid_reason(saving.reason)
        if draft.snapshot.condition(ConditionType.CHECKPOINTS_FAILING) is None:
            text = f"{reason}: {saving.message}"
            draft.record_event(ConditionType.CHECKPOINTS_FAILING, text, is_warning=True)
        draft.set_condition(
            ConditionType.CHECKPOINTS_FAILING, ConditionStatus.TRUE, reason, saving.message
        )
    counted = driver.checkpoint_failures + more
    return driver.model_copy(update={"checkpoint_failures": counted})


def end_checkpoints_failing(draft: Draft) -> None:
    """Remove the condition that checkpoints fail, with an event; without effect if it is absent."""
    if draft.snapshot.condition(ConditionType.CHECKPOINTS_FAILING) is None:
        return
    draft.remove_condition(ConditionType.CHECKPOINTS_FAILING)
    saved = draft.status.checkpoint
    newest = "" if saved is None else f"; the newest checkpoint is that of step {saved.step}"
    draft.record_event(CHECKPOINTS_SAVED, f"the job can save again{newest}")


def valid_reason(word: str) -> str:
    """Return a driver's reason in the form that conditions require: it begins with a letter."""
    return word if word[0].isalpha() else f"Driver{word}"


def add_reason(counts: Mapping[str, int], reason: str, number: int) -> Mapping[str, int]:
    """Return numbers of restarts by reason with some more; reasons above a limit share one."""
    if reason not in counts and len(counts) >= MAX_REASONS - 1:
        reason = OTHER
    return {**counts, reason: counts.get(reason, 0) + number} if number else counts


def _count_restarts(draft: Draft, driver: DriverStatus, report: StatusReport) -> DriverStatus:
    """Add the restarts that the driver has done by itself since its last report."""
    restarts = draft.status.restarts
    more = _increase(report.restarts, driver.incarnations, restarts.total)
    reason = valid_reason(report.reason or WORKERS_REPLACED)
    if more:
        draft.count_restart(Restart("incarnations", reason, more))
    disruptions = 0
    if not has_container_failed(draft.observed):
        disruptions = min(more, _increase(report.disruptions, driver.disruptions, restarts.total))
    repeated = _increase(report.steps_repeated, driver.steps_repeated, restarts.steps_repeated)
    draft.set(
        restarts=restarts.model_copy(
            update={
                "incarnations": restarts.incarnations + more,
                "total": restarts.total + more,
                "since_checkpoint": restarts.since_checkpoint + more - disruptions,
                "disruptions": restarts.disruptions + disruptions,
                "disruptions_since_checkpoint": restarts.disruptions_since_checkpoint + disruptions,
                "in_a_row": restarts.in_a_row + more,
                "by_reason": add_reason(restarts.by_reason, reason, more),
                "steps_repeated": restarts.steps_repeated + repeated,
            }
        )
    )
    return driver.model_copy(
        update={
            "incarnations": driver.incarnations + more,
            "disruptions": max(driver.disruptions, min(report.disruptions, MAX_RESTARTS)),
            "steps_repeated": driver.steps_repeated + repeated,
        }
    )


def _increase(reported: int, counted: int, total: int) -> int:
    """Return what to add to a total of which `counted` is this driver's part."""
    return max(0, min(reported - counted, MAX_RESTARTS - total))


def _progress(report: StatusReport, state: Snapshot) -> ProgressStatus:
    return ProgressStatus(
        phase=report.phase,
        step=report.step,
        total_steps=report.total_steps,
        percent=min(100, report.percent),
        seconds_remaining=report.seconds_remaining,
        tokens_per_second=_to_int32(report.tokens_per_second),
        # Decimals are strings in the status: CRDs discourage floating-point numbers.
        reward=_decimal(report.metrics, REWARD_MEAN),
        metrics=_shown_metrics(report.metrics),
        last_report_time=state.now,
    )


def _shown_metrics(metrics: Mapping[str, float]) -> dict[str, str]:
    shown = [
        name
        for name in metrics
        if name in SHOWN_METRICS or name.rpartition("/")[2] in SHOWN_ROLE_METRICS
    ]
    return {name: f"{metrics[name]:.4g}" for name in sorted(shown)[:MAX_METRICS]}


def _to_int32(number: float | None) -> int | None:
    return None if number is None else min(round(number), 2**31 - 1)


def _decimal(metrics: Mapping[str, float], name: str) -> str | None:
    return f"{metrics[name]:.4g}" if name in metrics else None
