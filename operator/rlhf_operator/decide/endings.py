"""How a job ends, and what follows from a failure before that."""

from __future__ import annotations

from rlhf_api.spec.failure import FailurePolicy
from rlhf_api.status import ConditionType, DriverStatus, JobPhase
from rlhf_operator.decide.draft import Draft, Restart, later
from rlhf_operator.decide.failures import Failure, backoff_seconds, verdict

ENDS = (JobPhase.SUCCEEDED, JobPhase.FAILED)


def has_ended(draft: Draft) -> bool:
    """Whether the job has succeeded or failed."""
    return draft.status.phase in ENDS


def succeed(draft: Draft) -> None:
    """All steps are done."""
    root = draft.status.artifacts.model
    message = "all steps are done" + (f"; the model is at {root}" if root else "")
    draft.set(completion_time=draft.now)
    draft.enter(JobPhase.SUCCEEDED, "Succeeded", message)
    draft.look_again(0)


def fail(draft: Draft, reason: str, message: str) -> None:
    """The job ends before that."""
    draft.set(completion_time=draft.now)
    draft.enter(JobPhase.FAILED, reason, message, is_warning=True, is_stuck=True)
    draft.look_again(0)


def end_driver(draft: Draft, exit_code: int | None = None) -> None:
    """Its process is gone for good."""
    driver = draft.status.driver
    if driver is None or driver.has_ended:
        return
    code = None if exit_code is None else _as_shell(exit_code)
    draft.set(driver=driver.model_copy(update={"has_ended": True, "exit_code": code}))


def _as_shell(exit_code: int) -> int:
    """An exit code as shells tell it: 128+N for signal N."""
    return min(255, 128 - exit_code if exit_code < 0 else exit_code)


def start_over_or_fail(draft: Draft, failure: Failure) -> None:
    """After a failure that ended the driver: the next start is set, or the job fails."""
    end_driver(draft, failure.exit_code)
    if draft.seen.job.job is None:
        why_not = "it cannot be started again: its manifest cannot be read any more"
        fail(draft, failure.reason, f"{failure.message} ({why_not})")
        return
    policy = draft.seen.job.job.spec.failure_policy
    judged = verdict(failure, policy, draft.status.restarts)
    if not judged.restarts:
        why_not = f" ({judged.why_not})" if judged.why_not else ""
        fail(draft, failure.reason, failure.message + why_not)
        return
    new_cluster = failure.needs_new_cluster or _is_repeated(draft, draft.status.driver)
    seconds = _count(draft, policy, judged.counts, new_cluster)
    draft.count(Restart("clusters" if new_cluster else "drivers", failure.reason))
    what = "a new cluster" if new_cluster else "the driver again"
    when = f"in {seconds:.0f} s" if seconds else "at once"
    message = f"{failure.message}; starting {what} {when} from the newest checkpoint"
    draft.enter(JobPhase.RESTARTING, failure.reason, message, is_warning=True)
    cluster = draft.status.cluster
    if new_cluster:
        draft.set(cluster=None)
        draft.drop(ConditionType.CLUSTER_READY)
        seconds = min(seconds, 1.0)  # the old cluster goes at once
    elif failure.needs_new_workers and cluster is not None:
        draft.set(cluster=cluster.model_copy(update={"replace_workers_before": draft.now}))
        seconds = 0.0  # the workers go at once
    draft.look_again(seconds)


def _is_repeated(draft: Draft, driver: DriverStatus | None) -> bool:
    """Whether this cluster was tried often enough since the last new checkpoint."""
    if driver is None:
        return False
    tries = min(draft.status.restarts.since_checkpoint, driver.restart)
    limit = draft.settings.restarts_on_a_cluster
    return tries > 0 and (tries + 1) % limit == 0


def _count(draft: Draft, policy: FailurePolicy, counts: bool, new_cluster: bool) -> float:
    """Add a restart; the seconds until it begins."""
    restarts = draft.status.restarts
    in_a_row = restarts.in_a_row + 1
    seconds = backoff_seconds(policy, in_a_row, draft.settings)
    draft.set(
        restarts=restarts.model_copy(
            update={
                "drivers": restarts.drivers + int(not new_cluster),
                "clusters": restarts.clusters + int(new_cluster),
                "total": restarts.total + 1,
                "since_checkpoint": restarts.since_checkpoint + int(counts),
                "in_a_row": in_a_row,
                "next_time": later(draft.now, seconds),
            }
        )
    )
    return seconds
