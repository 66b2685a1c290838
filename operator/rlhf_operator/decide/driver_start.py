"""The start of a driver on a cluster that is ready: never beside another one."""

from __future__ import annotations

from rlhf_api.on_cluster import submission_id
from rlhf_api.status import ClusterStatus, DriverStatus, JobPhase
from rlhf_operator.decide.actions import Stop, Submit
from rlhf_operator.decide.draft import Draft
from rlhf_operator.decide.driver_life import head_is_dead
from rlhf_operator.decide.endings import start_over_or_fail
from rlhf_operator.decide.failures import Failure, dead_head, head_refused
from rlhf_operator.decide.observed import HeadSeen, HeadState


def start_driver(draft: Draft, cluster: ClusterStatus) -> None:
    """Start the next driver, when the head answers and no earlier one lives there.

    One that was given up may still live: a queue let the cluster in again before its pods were
    gone, or a suspension was taken back.
    """
    head = draft.seen.head
    living = _living(head, cluster)
    if head.state is HeadState.REFUSED:
        if head.refused_seconds >= draft.settings.refused_seconds:
            start_over_or_fail(draft, head_refused(head.message))
        else:
            _wait(draft, "HeadRefused", f"the head does not take the token yet ({head.message})")
    elif head_is_dead(draft, cluster.attempt):
        start_over_or_fail(draft, dead_head(head.silent_seconds))
    elif head.state is not HeadState.ANSWERED:
        message = f"the head does not answer yet ({head.message})"
        _wait(draft, "HeadUnreachable", message)
    elif living and _is_given_up(draft):
        stuck = f"the driver before, {living[0]}, does not end, and a driver never runs beside it"
        start_over_or_fail(draft, Failure("DriverStuck", stuck, needs_new_cluster=True))
    elif living:
        draft.do(*(Stop(each) for each in living))
        _wait(draft, "WaitingForOldDriver", f"the driver before, {living[0]}, saves and ends first")
    else:
        _submit(draft, cluster)


def _is_given_up(draft: Draft) -> bool:
    """Whether the job's last driver was to end long ago."""
    driver = draft.status.driver
    if driver is None:  # the submission of a person, who may also end it
        return False
    if driver.stop_time is None:
        draft.set(driver=driver.model_copy(update={"stop_time": draft.now}))
        return False
    return draft.seconds_since(driver.stop_time) >= draft.settings.stop_seconds


def phase_before_driver(draft: Draft) -> JobPhase:
    """Where a job is whose next driver does not run yet."""
    return JobPhase.RESTARTING if draft.status.restarts.total else JobPhase.PROVISIONING


def _living(head: HeadSeen, cluster: ClusterStatus) -> list[str]:
    """Drivers of the job on a head; other submissions are their users' affair."""
    return [
        each.id
        for each in head.submissions
        if each.id.startswith(f"{cluster.name}-") and not each.state.has_ended
    ]


def _wait(draft: Draft, reason: str, message: str) -> None:
    draft.enter(phase_before_driver(draft), reason, message)
    draft.look_again(min(2.0, draft.settings.poll_seconds))


def _submit(draft: Draft, cluster: ClusterStatus) -> None:
    """The driver's name is in the status before it exists: it is never started twice."""
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
    phase = phase_before_driver(draft)
    draft.set(
        driver=made,
        cluster=cluster.model_copy(
            update={"head_pod_uid": head.uid, "replace_workers_before": None}
        ),
        start_time=draft.status.start_time or draft.now,
        restarts=draft.status.restarts.model_copy(update={"next_time": None}),
    )
    draft.enter(phase, "Submitted", f"the driver {made.submission_id} is being started")
    draft.do(Submit(made.submission_id))
    draft.look_again(1.0)
