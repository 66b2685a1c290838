"""From a driver's reports to the progress that people see."""

from __future__ import annotations

from collections.abc import Mapping

from rlhf_api.report import REWARD_MEAN, StatusReport
from rlhf_api.status import DriverStatus, ProgressStatus
from rlhf_operator.decide.draft import Draft, Restart

TELLING = {
    REWARD_MEAN,
    "evaluation/reward_mean",
    "evaluation/exact_match",
    "response/length_mean",
    "response/truncated",
    "time/step",
}
"""Metrics that the status has, where the job has them; the rest is in metrics.jsonl."""
TELLING_OF_ROLES = {"mean", "std", "kl", "loss", "accuracy", "entropy", "gradient_norm"}
"""The same of every role: `<role>/loss` and so on."""
MOST_METRICS = 64
"""As many are shown."""

WORKERS_REPLACED = "WorkersReplaced"
"""The reason of a restart by the driver whose own reason nobody heard."""
MOST_RESTARTS = 10**9
"""As many are counted: a driver that tells of more must not overflow the status."""


def take_report(draft: Draft, driver: DriverStatus, report: StatusReport) -> DriverStatus:
    """Take over what is new in a report of this driver; the driver's status after that."""
    last = driver.sequence
    if report.submission_id != driver.submission_id or (
        last is not None and report.sequence <= last
    ):
        return driver
    is_checkpoint = _take_checkpoint(draft, report)
    if not (is_checkpoint or report.final or _is_due(draft, report)):
        return driver
    driver = _count(draft, driver, report)
    draft.set(progress=progress_of(report, draft))
    return driver.model_copy(update={"sequence": report.sequence})


def _is_due(draft: Draft, report: StatusReport) -> bool:
    before = draft.status.progress
    if before is None:
        return True
    waited = draft.seconds_since(before.last_report_time)
    return waited >= draft.settings.progress_seconds


def _take_checkpoint(draft: Draft, report: StatusReport) -> bool:
    """Whether there is a new one: then restarts count from there."""
    before, new = draft.status.checkpoint, report.checkpoint
    if new is None or (before is not None and new.step <= before.step):
        return False
    restarts = draft.status.restarts.model_copy(update={"since_checkpoint": 0, "in_a_row": 0})
    draft.set(checkpoint=new, restarts=restarts)
    return True


def _count(draft: Draft, driver: DriverStatus, report: StatusReport) -> DriverStatus:
    """Add the restarts that the driver has done by itself since it was last asked."""
    restarts = draft.status.restarts
    more = _more(report.restarts, driver.incarnations, restarts.total)
    if more:
        draft.count(Restart("incarnations", report.reason or WORKERS_REPLACED, more))
    repeated = _more(report.steps_repeated, driver.steps_repeated, restarts.steps_repeated)
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


def _more(told: int, known: int, total: int) -> int:
    """What is added to a total, when so much is told and so much of it is in the total already."""
    return max(0, min(told - known, MOST_RESTARTS - total))


def progress_of(report: StatusReport, draft: Draft) -> ProgressStatus:
    """What the status says of a report."""
    return ProgressStatus(
        phase=report.phase,
        step=report.step,
        total_steps=report.total_steps,
        percent=min(100, report.percent),
        seconds_remaining=report.seconds_remaining,
        tokens_per_second=_whole(report.tokens_per_second),
        reward=_decimal(report.metrics, REWARD_MEAN),
        metrics=_telling(report.metrics),
        last_report_time=draft.now,
    )


def _telling(metrics: Mapping[str, float]) -> dict[str, str]:
    shown = [
        name for name in metrics if name in TELLING or name.rpartition("/")[2] in TELLING_OF_ROLES
    ]
    return {name: f"{metrics[name]:.4g}" for name in sorted(shown)[:MOST_METRICS]}


def _whole(number: float | None) -> int | None:
    return None if number is None else min(round(number), 2**31 - 1)


def _decimal(metrics: Mapping[str, float], name: str) -> str | None:
    return f"{metrics[name]:.4g}" if name in metrics else None
