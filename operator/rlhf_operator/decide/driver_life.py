"""A driver from its submission to its end."""

from __future__ import annotations

from collections.abc import Mapping

from rlhf_api.exits import ExitCode
from rlhf_api.report import RunPhase, StatusReport
from rlhf_api.status import DriverStatus, JobPhase
from rlhf_operator.clients.head.protocol import Submission, SubmissionState
from rlhf_operator.decide.actions import AcknowledgeReport, StopDriver, SubmitDriver
from rlhf_operator.decide.decision import Draft
from rlhf_operator.decide.disruptions import is_node_lost
from rlhf_operator.decide.endings import end_driver, restart_or_fail, succeed
from rlhf_operator.decide.failures import Failure, driver_frozen, head_dead, head_refused
from rlhf_operator.decide.observed import HeadState, Observed
from rlhf_operator.decide.predicates import (
    has_current_head,
    has_ended,
    is_driver_frozen,
    is_driver_gone,
    is_head_dead,
    is_outdated,
    is_progress_stale,
    is_stop_overdue,
)
from rlhf_operator.decide.reports import record_report, valid_reason

ACTIVITIES: Mapping[str, str] = {
    RunPhase.START: "the driver starts its workers",
    RunPhase.WARM_START: "the actor is trained on reference answers",
    RunPhase.RESTART: "the driver starts its workers again",
}
"""Activities of a driver besides training, by the phase of its report."""
DIRTY_CLUSTER = "DirtyCluster"
"""The driver's reason if workers hold processes or memory of an earlier driver."""


def follow_driver(draft: Draft, driver: DriverStatus) -> None:
    """Follow a driver that may be running."""
    head = draft.observed.head
    # No event reports progress: the head must be asked.
    draft.requeue_after(draft.settings.poll_seconds)
    if head.state is HeadState.REFUSED:
        if head.refused_seconds >= draft.settings.refused_seconds:
            restart_or_fail(draft, head_refused(head.message))
    elif head.state is HeadState.ANSWERED:
        submission = head.submission(driver.submission_id)
        if submission is not None:
            _follow_submission(draft, driver, submission, head.report)
        elif driver.sequence is None and draft.status.phase is not JobPhase.RUNNING:
            # It never began: the operator was cut off between the status and the submission.
            draft.do(SubmitDriver(driver.submission_id))
            draft.requeue_after(1.0)
        else:
            restart_or_fail(
                draft,
                Failure(
                    "HeadLost", "Ray on the head pod was restarted: the driver has ended with it"
                ),
            )
    elif is_head_dead(draft.snapshot, driver.attempt):
        restart_or_fail(draft, head_dead(head.unanswered_seconds))
    elif is_progress_stale(draft.snapshot):
        # Includes a head that was not asked because its pod is not ready.
        message = "the head does not answer the operator; the job may still train"
        draft.set_phase(JobPhase.RUNNING, "HeadUnreachable", message, is_warning=True)


def _follow_submission(
    draft: Draft, driver: DriverStatus, submission: Submission, report: StatusReport | None
) -> None:
    if report is not None:
        driver = record_report(draft, driver, report)
        draft.set(driver=driver)
    if submission.state.has_ended:
        _end_submission(draft, submission, _final_report(driver, report))
        return
    final = _final_report(driver, report)
    if final is not None:
        draft.do(AcknowledgeReport(driver.submission_id, final.sequence))
        # Soon: after the acknowledgement the driver ends, and its devices idle until this is seen.
        draft.requeue_after(1.0)
    elif is_driver_frozen(draft.snapshot):
        restart_or_fail(draft, driver_frozen(draft.observed.head.unchanged_seconds))
        return
    if submission.state is SubmissionState.RUNNING:
        draft.set_phase(JobPhase.RUNNING, "Running", _activity(draft, driver, report))


def _activity(draft: Draft, driver: DriverStatus, report: StatusReport | None) -> str:
    # The text stays the same during one activity, so that the status is not written for nothing.
    if driver.sequence is None:
        return f"the driver {driver.submission_id} has started"
    if report is None:  # it did not answer in time: what it last reported still holds
        return draft.status.message if draft.status.reason == "Running" else "the driver runs"
    if report.reason is not None and not report.final:
        return f"{report.reason}: {report.message}"
    return ACTIVITIES.get(report.phase, "training")


def _final_report(driver: DriverStatus, report: StatusReport | None) -> StatusReport | None:
    """Return the report if it is this driver's final one."""
    if report is None or not report.final or report.submission_id != driver.submission_id:
        return None
    return report


def _end_submission(draft: Draft, submission: Submission, final: StatusReport | None) -> None:
    code = _exit_code(submission, final)
    if code == ExitCode.DONE:
        end_driver(draft, code)
        succeed(draft, _cause(final))
        return
    restart_or_fail(draft, _failure(draft.observed, submission, code, final))


def _cause(final: StatusReport | None) -> str:
    """Return why training ended before its last step; empty if all steps are done."""
    # Only the report tells an early stop from the last step.
    return "training is done" if final is None else final.message


def _exit_code(submission: Submission, final: StatusReport | None) -> int | None:
    """Return the exit code that Ray recorded, else the one in the driver's final report."""
    if submission.exit_code is not None:
        return submission.exit_code
    if submission.state is SubmissionState.SUCCEEDED:
        return int(ExitCode.DONE)
    return None if final is None or final.exit_code is None else int(final.exit_code)


def _failure(
    observed: Observed, submission: Submission, code: int | None, final: StatusReport | None
) -> Failure:
    if final is not None and final.reason is not None:
        message = final.message or f"the driver ended with exit code {code}"
        is_dirty = final.reason == DIRTY_CLUSTER
        # The driver's own reason is better than what the exit code tells.
        return Failure(
            valid_reason(final.reason),
            message,
            code,
            needs_new_workers=is_dirty,
            is_disruption=is_node_lost(observed, final.reason),
        )
    if code == ExitCode.INTERRUPTED:
        return Failure("Interrupted", "the driver was asked by somebody else to save and end", code)
    # Ray reports a signal as -N, a shell as 128+N.
    if code is not None and (code < 0 or code > 128):
        signal = -code if code < 0 else code - 128
        return Failure(
            "DriverKilled",
            f"the driver was killed by signal {signal}"
            + (": the head's memory may be too small" if signal == 9 else ""),
            128 + signal,
        )
    detail = f": {submission.message}" if submission.message else ""
    outcome = "without an exit code" if code is None else f"with exit code {code}"
    return Failure("DriverFailed", f"the driver ended {outcome}{detail}", code)


def stop_driver(draft: Draft) -> None:
    """Ask the driver to save and end. `is_driver_gone` is true once it has, or was given up."""
    driver, cluster = draft.status.driver, draft.status.cluster
    if driver is None or driver.has_ended or cluster is None:
        return
    if driver.stop_time is None:
        driver = driver.model_copy(update={"stop_time": draft.now})
        draft.set(driver=driver)
    state = draft.snapshot
    exists = draft.observed.cluster(cluster.name) is not None
    # A driver that does not end in time is given up: its cluster is deleted or replaced.
    if is_stop_overdue(state) or not (exists and has_current_head(state, cluster)):
        end_driver(draft)
    else:
        _request_stop(draft, driver)
    if not is_driver_gone(draft.snapshot):
        # More often than usual: devices are idle while a driver ends.
        draft.requeue_after(min(2.0, draft.settings.poll_seconds))


def _request_stop(draft: Draft, driver: DriverStatus) -> None:
    head = draft.observed.head
    if head.state is not HeadState.ANSWERED:
        return
    submission = head.submission(driver.submission_id)
    if submission is None:
        end_driver(draft)
        return
    if head.report is not None:
        driver = record_report(draft, driver, head.report)
        draft.set(driver=driver)
    final = _final_report(driver, head.report)
    if not submission.state.has_ended:
        if final is not None:
            draft.do(AcknowledgeReport(driver.submission_id, final.sequence))
        draft.do(StopDriver(driver.submission_id))
        return
    code = _exit_code(submission, final)
    end_driver(draft, code)
    # An outdated driver has done the steps of another manifest: the job is not finished.
    if code == ExitCode.DONE and not (has_ended(draft.snapshot) or is_outdated(draft.snapshot)):
        succeed(draft, _cause(final))
