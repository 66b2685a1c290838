"""A driver from its submission to its end."""

from __future__ import annotations

from rlhf_api.exits import ExitCode
from rlhf_api.report import StatusReport
from rlhf_api.status import DriverStatus, JobPhase
from rlhf_operator.clients.head.protocol import Submission, SubmissionState
from rlhf_operator.decide.actions import Acknowledge, Stop, Submit
from rlhf_operator.decide.draft import Draft
from rlhf_operator.decide.endings import end_driver, has_ended, start_over_or_fail, succeed
from rlhf_operator.decide.failures import Failure, dead_head, frozen, head_refused
from rlhf_operator.decide.observed import HeadState
from rlhf_operator.decide.reports import take_report

DIRTY_CLUSTER = "DirtyCluster"
"""The driver's reason for workers that hold what an earlier driver left."""


def follow_driver(draft: Draft, driver: DriverStatus) -> None:
    """Look after a driver that may be alive."""
    head = draft.seen.head
    draft.look_again(draft.settings.poll_seconds)
    if head.state is HeadState.REFUSED:
        if head.refused_seconds >= draft.settings.refused_seconds:
            start_over_or_fail(draft, head_refused(head.message))
    elif head.state is HeadState.ANSWERED:
        submission = head.submission(driver.submission_id)
        if submission is not None:
            _follow(draft, driver, submission, head.report)
        elif driver.sequence is None and draft.status.phase is not JobPhase.RUNNING:
            draft.do(Submit(driver.submission_id))  # it never began: what was cut short is done
            draft.look_again(1.0)
        else:
            start_over_or_fail(
                draft, Failure("HeadLost", "Ray on the head pod was started again: the driver died")
            )
    elif head_is_dead(draft, driver.attempt):
        start_over_or_fail(draft, dead_head(head.silent_seconds))
    elif _is_silent(draft):  # its pod may be there and not ready: not asked, then
        message = "the head does not answer the operator; the job may train on, unseen"
        draft.enter(JobPhase.RUNNING, "HeadUnreachable", message, is_warning=True)


def head_is_dead(draft: Draft, attempt: int) -> bool:
    """Whether a head has not answered for too long, and it is not the operator that is cut off.

    Kubelets ask the same port of the same process: where theirs says that the head is well, only
    the answers of others tell that the operator can reach a head at all.
    """
    head = draft.seen.head
    if head.silent_seconds < draft.settings.dead_head_seconds:
        return False
    pod = draft.seen.head_pod(draft.seen.job.cluster_name(attempt))
    return pod is None or not pod.is_ready or head.others_answer


def _is_frozen(draft: Draft) -> bool:
    """Whether a driver that tells something now and then whatever it does has stopped to."""
    head = draft.seen.head
    if head.heartbeat_seconds is None:
        return False
    limit = max(draft.settings.frozen_report_seconds, 3 * head.heartbeat_seconds)
    return head.still_seconds >= limit


def _is_silent(draft: Draft) -> bool:
    """Whether a job that runs has not been heard of for a while: one answer may be late."""
    progress = draft.status.progress
    if draft.status.phase is not JobPhase.RUNNING or progress is None:
        return False
    return draft.seconds_since(progress.last_report_time) >= draft.settings.silent_seconds


def _follow(
    draft: Draft, driver: DriverStatus, submission: Submission, report: StatusReport | None
) -> None:
    if report is not None:
        driver = take_report(draft, driver, report)
        draft.set(driver=driver)
    if submission.state.has_ended:
        _take_exit(draft, submission, _final(driver, report))
        return
    if report is not None and report.final and report.submission_id == driver.submission_id:
        draft.do(Acknowledge(driver.submission_id, report.sequence))
        draft.look_again(1.0)
    elif _is_frozen(draft):
        start_over_or_fail(draft, frozen(draft.seen.head.still_seconds))
        return
    if submission.state is SubmissionState.RUNNING:
        draft.enter(JobPhase.RUNNING, "Running", _doing(driver, report))


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


def _take_exit(draft: Draft, submission: Submission, final: StatusReport | None) -> None:
    """What follows from a driver's end."""
    code = _exit_code(submission, final)
    if code == ExitCode.DONE:
        end_driver(draft, code)
        succeed(draft)
        return
    start_over_or_fail(draft, _failure(submission, code, final))


def _exit_code(submission: Submission, final: StatusReport | None) -> int | None:
    """What Ray saw; where it saw nothing, the driver's own word."""
    if submission.exit_code is not None:
        return submission.exit_code
    if submission.state is SubmissionState.SUCCEEDED:
        return int(ExitCode.DONE)
    return None if final is None or final.exit_code is None else int(final.exit_code)


def _failure(submission: Submission, code: int | None, final: StatusReport | None) -> Failure:
    if final is not None and final.reason is not None:
        message = final.message or f"the driver ended with exit code {code}"
        dirty = final.reason == DIRTY_CLUSTER
        return Failure(_as_reason(final.reason), message, code, needs_new_workers=dirty)
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


def _as_reason(word: str) -> str:
    """A driver's reason as Kubernetes takes it: with a letter first."""
    return word if word[0].isalpha() else f"Driver{word}"


def stop_driver(draft: Draft) -> bool:
    """Let the driver save and end; whether it is gone, or does not end in time and is given up."""
    driver, cluster = draft.status.driver, draft.status.cluster
    if driver is None or driver.has_ended or cluster is None:
        return True
    if driver.stop_time is None:
        driver = driver.model_copy(update={"stop_time": draft.now})
        draft.set(driver=driver)
    seen = draft.seen.cluster(cluster.name)
    head = draft.seen.head_pod(cluster.name)
    too_long = draft.seconds_since(driver.stop_time) >= draft.settings.stop_seconds
    is_dead = seen is None or head is None or head.uid != cluster.head_pod_uid
    if too_long or is_dead or _has_stopped(draft, driver):
        end_driver(draft)
        return True
    draft.look_again(min(2.0, draft.settings.poll_seconds))
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
    if not submission.state.has_ended:
        if report is not None and report.final and report.submission_id == driver.submission_id:
            draft.do(Acknowledge(driver.submission_id, report.sequence))
        draft.do(Stop(driver.submission_id))
        return False
    code = _exit_code(submission, _final(driver, report))
    end_driver(draft, code)
    if code == ExitCode.DONE and not (has_ended(draft) or draft.is_outdated):
        succeed(draft)
    return True
