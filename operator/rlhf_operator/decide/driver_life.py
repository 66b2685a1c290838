"""A driver from its submission to its end."""

from __future__ import annotations

from datetime import datetime

from rlhf_api.exits import ExitCode
from rlhf_api.on_cluster import submission_id
from rlhf_api.report import StatusReport
from rlhf_api.status import ClusterStatus, DriverStatus, Phase
from rlhf_operator.decide.actions import Acknowledge, Stop, Submit
from rlhf_operator.decide.draft import Draft
from rlhf_operator.decide.endings import end_driver, start_over_or_fail, succeed
from rlhf_operator.decide.failures import Failure
from rlhf_operator.decide.observed import HeadState
from rlhf_operator.decide.reports import take_report
from rlhf_operator.head.protocol import Submission, SubmissionState

DIRTY_CLUSTER = "DirtyCluster"
"""The driver's reason for workers that hold what an earlier driver left."""


def submit(draft: Draft, cluster: ClusterStatus) -> None:
    """Start the next driver. Its name is in the status before it exists: it is never started
    twice."""
    head = draft.seen.head_pod(cluster.name)
    assert head is not None
    last = draft.status.driver
    same = last is not None and last.attempt == cluster.attempt
    restart = last.restart + 1 if last is not None and same else 0
    made = DriverStatus(
        submission_id=submission_id(draft.seen.job.name, cluster.attempt, restart),
        attempt=cluster.attempt,
        restart=restart,
    )
    draft.set(
        driver=made,
        cluster=cluster.model_copy(update={"head_pod_uid": head.uid}),
        start_time=draft.status.start_time or draft.now,
        restarts=draft.status.restarts.model_copy(update={"next_time": None}),
    )
    phase = Phase.RESTARTING if draft.status.restarts.total else Phase.PROVISIONING
    draft.enter(phase, "Submitted", f"the driver {made.submission_id} is being started")
    draft.do(Submit(made.submission_id))
    draft.again(1.0)


def follow_driver(draft: Draft, driver: DriverStatus) -> None:
    """Look after a driver that may be alive."""
    head = draft.seen.head
    draft.again(draft.settings.poll_seconds)
    if head.state is HeadState.REFUSED:
        start_over_or_fail(
            draft,
            Failure(
                "HeadRefused",
                f"the cluster's head does not take this operator's token ({head.message})",
                needs_new_cluster=True,
            ),
        )
    elif head.state is HeadState.ANSWERED:
        submission = head.submission(driver.submission_id)
        if submission is not None:
            _follow(draft, driver, submission, head.report)
        elif driver.sequence is None:
            draft.do(Submit(driver.submission_id))  # it never began: what was cut short is done
            draft.again(1.0)
        else:
            start_over_or_fail(
                draft, Failure("HeadLost", "Ray on the head pod was started again: the driver died")
            )


def _follow(
    draft: Draft, driver: DriverStatus, submission: Submission, report: StatusReport | None
) -> None:
    if report is not None:
        driver = take_report(draft, driver, report)
        draft.set(driver=driver)
    if submission.state.has_ended:
        _judge(draft, submission, _final(driver, report))
        return
    if report is not None and report.final and report.submission_id == driver.submission_id:
        draft.do(Acknowledge(driver.submission_id, report.sequence))
        draft.again(1.0)
    if submission.state is SubmissionState.RUNNING:
        draft.enter(Phase.RUNNING, "Running", _doing(driver, report))


def _doing(driver: DriverStatus, report: StatusReport | None) -> str:
    """The same words while the same thing is done, so that nothing is written for nothing."""
    if driver.sequence is None:
        return f"the driver {driver.submission_id} has started"
    if report is not None and report.reason is not None and not report.final:
        return f"{report.reason}: {report.message}"
    return "training"


def _final(driver: DriverStatus, report: StatusReport | None) -> StatusReport | None:
    """The driver's last words, if it had time for them."""
    if report is None or not report.final or report.submission_id != driver.submission_id:
        return None
    return report


def _judge(draft: Draft, submission: Submission, final: StatusReport | None) -> None:
    """What follows from a driver's end: the exit code that Ray saw decides."""
    code = submission.exit_code
    if code is None and submission.state is SubmissionState.SUCCEEDED:
        code = int(ExitCode.DONE)
    if code is None and final is not None and final.exit_code is not None:
        code = int(final.exit_code)
    if code == ExitCode.DONE:
        end_driver(draft, code)
        succeed(draft)
        return
    start_over_or_fail(draft, _failure(submission, code, final))


def _failure(submission: Submission, code: int | None, final: StatusReport | None) -> Failure:
    if final is not None and final.reason is not None:
        message = final.message or f"the driver ended with exit code {code}"
        dirty = final.reason == DIRTY_CLUSTER
        return Failure(final.reason, message, code, needs_new_workers=dirty)
    if code == ExitCode.INTERRUPTED:
        return Failure("Interrupted", "somebody else told the driver to save and end", code)
    if code is not None and (code < 0 or code > 128):
        signal = -code if code < 0 else code - 128
        return Failure(
            "DriverKilled",
            f"the driver was ended by signal {signal}"
            + (": the head's memory may be too small" if signal == 9 else ""),
            128 + signal,
        )
    said = f": {submission.message}" if submission.message else ""
    what = "without an exit code" if code is None else f"with exit code {code}"
    return Failure("DriverFailed", f"the driver ended {what}{said}", code)


def driver_is_gone(draft: Draft, since: datetime) -> bool:
    """Let the driver save and end; whether it has.

    Args:
        since: when it was first told: a driver that does not end in time is given up.
    """
    driver, cluster = draft.status.driver, draft.status.cluster
    if driver is None or driver.has_ended or cluster is None:
        return True
    seen = draft.seen.cluster(cluster.name)
    head = draft.seen.head_pod(cluster.name)
    too_long = draft.seconds_since(since) >= draft.settings.stop_seconds
    is_dead = seen is None or head is None or head.uid != cluster.head_pod_uid
    if too_long or is_dead or _has_stopped(draft, driver):
        end_driver(draft)
        return True
    draft.again(min(2.0, draft.settings.poll_seconds))
    return False


def _has_stopped(draft: Draft, driver: DriverStatus) -> bool:
    head = draft.seen.head
    if head.state is not HeadState.ANSWERED:
        return False
    submission = head.submission(driver.submission_id)
    if submission is None:
        return True
    report = head.report
    if report is not None:
        driver = take_report(draft, driver, report)
        draft.set(driver=driver)
        if report.final and report.submission_id == driver.submission_id:
            draft.do(Acknowledge(driver.submission_id, report.sequence))
    if not submission.state.has_ended:
        draft.do(Stop(driver.submission_id))
        return False
    ended = draft.status.phase in (Phase.SUCCEEDED, Phase.FAILED)
    end_driver(draft, submission.exit_code)
    if submission.exit_code == ExitCode.DONE and not ended:
        succeed(draft)
    return True
