"""Progress, checkpoints and restarts of the status, from a driver's reports."""

from __future__ import annotations

from collections.abc import Mapping

from rlhf_api.report import REWARD_MEAN, StatusReport
from rlhf_api.status import DriverStatus, ProgressStatus, RLHFJobStatus
from rlhf_operator.decide.decision import Draft, Restart
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
    has_checkpoint = has_new_checkpoint(draft.status, report)
    if has_checkpoint:
        _record_checkpoint(draft, report)
    if not (has_checkpoint or report.final or is_progress_due(draft.snapshot)):
        return driver
    driver = _count_restarts(draft, driver, report)
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


def _record_checkpoint(draft: Draft, report: StatusReport) -> None:
    # Restarts are limited between two checkpoints: a new one starts the count again.
    restarts = draft.status.restarts.model_copy(update={"since_checkpoint": 0, "in_a_row": 0})
    draft.set(checkpoint=report.checkpoint, restarts=restarts)


def _count_restarts(draft: Draft, driver: DriverStatus, report: StatusReport) -> DriverStatus:
    """Add the restarts that the driver has done by itself since its last report."""
    restarts = draft.status.restarts
    more = _increase(report.restarts, driver.incarnations, restarts.total)
    if more:
        draft.count_restart(Restart("incarnations", report.reason or WORKERS_REPLACED, more))
    repeated = _increase(report.steps_repeated, driver.steps_repeated, restarts.steps_repeated)
    draft.set(
        restarts=restarts.model_copy(
            update={
                "incarnations": restarts.incarnations + more,
                "total": restarts.total + more,
                "since_checkpoint": restarts.since_checkpoint + more,
                "in_a_row": restarts.in_a_row + more,
                "steps_repeated": restarts.steps_repeated + repeated,
            }
        )
    )
    return driver.model_copy(
        update={
            "incarnations": driver.incarnations + more,
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
