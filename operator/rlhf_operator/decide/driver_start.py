"""The start of a driver on a ready cluster: never beside another driver of the job."""

from __future__ import annotations

from rlhf_api.on_cluster import submission_id
from rlhf_api.status import ClusterStatus, DriverStatus, JobPhase
from rlhf_operator.decide.actions import StopDriver, SubmitDriver
from rlhf_operator.decide.decision import Draft
from rlhf_operator.decide.endings import restart_or_fail
from rlhf_operator.decide.failures import Failure, head_dead, head_refused
from rlhf_operator.decide.observed import HeadState, ObservedHead
from rlhf_operator.decide.predicates import Snapshot, is_head_dead, is_stop_overdue


def start_driver(draft: Draft, cluster: ClusterStatus) -> None:
    """Start the next driver if the head answers and no earlier one runs there."""
    head = draft.observed.head
    # A driver that was given up may still run: a queue admitted the cluster again before its pods
    # were gone, or a suspension was taken back.
    running = _running_drivers(head, cluster)
    if head.state is HeadState.REFUSED:
        if head.refused_seconds >= draft.settings.refused_seconds:
            restart_or_fail(draft, head_refused(head.message))
        else:
            _wait(draft, "HeadRefused", f"the head refuses the token so far ({head.message})")
    elif is_head_dead(draft.snapshot, cluster.attempt):
        restart_or_fail(draft, head_dead(head.unanswered_seconds))
    elif head.state is not HeadState.ANSWERED:
        message = f"the head does not answer yet ({head.message})"
        _wait(draft, "HeadUnreachable", message)
    # Two drivers would write to the same run folder.
    elif running and is_stop_overdue(draft.snapshot):
        message = (
            f"the previous driver, {running[0]}, does not end, and two drivers never run at once"
        )
        # Not counted: the operator stopped this driver, or gave it up for a failure that counts.
        restart_or_fail(
            draft, Failure("DriverStuck", message, needs_new_cluster=True, is_counted=False)
        )
    elif running:
        _stop_running(draft, running)
    else:
        _submit(draft, cluster)


def _stop_running(draft: Draft, running: list[str]) -> None:
    # Without a driver in the status, the submission is a person's, who may also end it: no time
    # limit then.
    driver = draft.status.driver
    if driver is not None and driver.stop_time is None:
        draft.set(driver=driver.model_copy(update={"stop_time": draft.now}))
    draft.do(*(StopDriver(id) for id in running))
    _wait(draft, "WaitingForOldDriver", f"the previous driver, {running[0]}, saves and ends first")


def phase_before_driver(state: Snapshot) -> JobPhase:
    """Return the phase of a job whose next driver does not run yet."""
    return JobPhase.RESTARTING if state.status.restarts.total else JobPhase.PROVISIONING


def _running_drivers(head: ObservedHead, cluster: ClusterStatus) -> list[str]:
    # Other submissions belong to users.
    return [
        submission.id
        for submission in head.submissions
        if submission.id.startswith(f"{cluster.name}-") and not submission.state.has_ended
    ]


def _wait(draft: Draft, reason: str, message: str) -> None:
    draft.set_phase(phase_before_driver(draft.snapshot), reason, message)
    draft.requeue_after(min(2.0, draft.settings.poll_seconds))


def _submit(draft: Draft, cluster: ClusterStatus) -> None:
    head = draft.observed.head_pod(cluster.name)
    assert head is not None
    last = draft.status.driver
    is_same_cluster = last is not None and last.attempt == cluster.attempt
    restart = last.restart + 1 if last is not None and is_same_cluster else 0
    # The driver's id is in the status before the driver exists, so it is never started twice.
    driver = DriverStatus(
        submission_id=submission_id(draft.observed.job.name, cluster.attempt, restart),
        attempt=cluster.attempt,
        restart=restart,
    )
    phase = phase_before_driver(draft.snapshot)
    draft.set(
        driver=driver,
        cluster=cluster.model_copy(
            update={"head_pod_uid": head.uid, "replace_workers_before": None}
        ),
        start_time=draft.status.start_time or draft.now,
        restarts=draft.status.restarts.model_copy(update={"next_time": None}),
    )
    draft.set_phase(phase, "Submitted", f"the driver {driver.submission_id} is being started")
    draft.do(SubmitDriver(driver.submission_id))
    draft.requeue_after(1.0)
