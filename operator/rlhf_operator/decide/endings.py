"""Success and failure of a job, and the next start after a failure of a driver or cluster."""

from __future__ import annotations

from datetime import timedelta

from rlhf_api.spec.failure import FailurePolicy
from rlhf_api.status import ConditionType, JobPhase
from rlhf_operator.decide.decision import Draft, Restart
from rlhf_operator.decide.failures import Failure, Verdict, backoff_seconds, decide_restart
from rlhf_operator.decide.predicates import is_cluster_exhausted
from rlhf_operator.decide.reports import add_reason, end_checkpoints_failing


def succeed(draft: Draft, cause: str = "") -> None:
    """End a job whose training is done.

    Args:
        draft: of the status.
        cause: why it ended, in words. Empty: all steps are done.
    """
    end_checkpoints_failing(draft)
    root = draft.status.artifacts.model
    message = (cause or "all steps are done") + (f"; the model is at {root}" if root else "")
    draft.set(completion_time=draft.now)
    draft.set_phase(JobPhase.SUCCEEDED, "Succeeded", message)
    draft.requeue_after(0)


def fail(draft: Draft, reason: str, message: str) -> None:
    """End a job that cannot do its steps."""
    draft.set(completion_time=draft.now)
    draft.set_phase(JobPhase.FAILED, reason, message, is_warning=True, is_stuck=True)
    draft.requeue_after(0)


def end_driver(draft: Draft, exit_code: int | None = None) -> None:
    """Record that the driver's process has ended; without effect if that is recorded."""
    driver = draft.status.driver
    if driver is None or driver.has_ended:
        return
    code = None if exit_code is None else _shell_exit_code(exit_code)
    draft.set(driver=driver.model_copy(update={"has_ended": True, "exit_code": code}))


def _shell_exit_code(exit_code: int) -> int:
    """Return an exit code in the form of shells: 128+N for signal N."""
    return min(255, 128 - exit_code if exit_code < 0 else exit_code)


def restart_or_fail(draft: Draft, failure: Failure) -> None:
    """Schedule the next start after a failure that ended the driver, or fail the job."""
    end_driver(draft, failure.exit_code)
    if draft.observed.job.job is None:
        obstacle = "it cannot be restarted: its manifest is not readable any more"
        fail(draft, failure.reason, f"{failure.message} ({obstacle})")
        return
    policy = draft.observed.job.job.spec.failure_policy
    verdict = decide_restart(failure, policy, draft.status.restarts)
    if not verdict.restarts:
        obstacle = f" ({verdict.obstacle})" if verdict.obstacle else ""
        fail(draft, failure.reason, failure.message + obstacle)
        return
    # Restarts in place are faster, but a broken cluster would fail every one of them.
    new_cluster = failure.needs_new_cluster or is_cluster_exhausted(draft.snapshot)
    seconds = _add_restart(draft, policy, verdict, new_cluster, failure.reason)
    draft.count_restart(Restart("clusters" if new_cluster else "drivers", failure.reason))
    what = "a new cluster" if new_cluster else "the driver again"
    when = f"in {seconds:.0f} s" if seconds else "at once"
    message = f"{failure.message}; starting {what} {when} from the newest checkpoint"
    draft.set_phase(JobPhase.RESTARTING, failure.reason, message, is_warning=True)
    cluster = draft.status.cluster
    if new_cluster:
        draft.set(cluster=None)
        draft.remove_condition(ConditionType.CLUSTER_READY)
        seconds = min(seconds, 1.0)  # the old cluster is deleted during the back-off
    elif failure.needs_new_workers and cluster is not None:
        draft.set(cluster=cluster.model_copy(update={"replace_workers_before": draft.now}))
        seconds = 0.0  # the workers are deleted during the back-off
    draft.requeue_after(seconds)


def await_next_start(draft: Draft) -> None:
    """Wait until the next start is due; the phase says so."""
    due = draft.status.restarts.next_time
    assert due is not None
    is_stalled = draft.snapshot.condition(ConditionType.STALLED) is not None
    # The failure's reason stays, unless a refusal or an eviction, now over, has replaced it.
    if draft.status.phase is not JobPhase.RESTARTING or is_stalled:
        draft.set_phase(
            JobPhase.RESTARTING, "BackingOff", f"the next start is due at {due:%H:%M:%S} UTC"
        )
    draft.requeue_after((due - draft.now).total_seconds())


def _add_restart(
    draft: Draft, policy: FailurePolicy, verdict: Verdict, new_cluster: bool, reason: str
) -> float:
    """Count a restart in the status; return the seconds until it begins."""
    restarts = draft.status.restarts
    in_a_row, disruptions = restarts.in_a_row + 1, int(verdict.is_disruption)
    seconds = backoff_seconds(policy, in_a_row, draft.settings)
    draft.set(
        restarts=restarts.model_copy(
            update={
                "drivers": restarts.drivers + int(not new_cluster),
                "clusters": restarts.clusters + int(new_cluster),
                "total": restarts.total + 1,
                "since_checkpoint": restarts.since_checkpoint + int(verdict.counts),
                "disruptions": restarts.disruptions + disruptions,
                "disruptions_since_checkpoint": restarts.disruptions_since_checkpoint + disruptions,
                "in_a_row": in_a_row,
                "by_reason": add_reason(restarts.by_reason, reason, 1),
                "next_time": draft.now + timedelta(seconds=seconds),
            }
        )
    )
    return seconds
