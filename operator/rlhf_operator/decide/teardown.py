"""Transitions that release the cluster for good: deadlines and the end of a job."""

from __future__ import annotations

from rlhf_api.status import ConditionStatus, ConditionType
from rlhf_operator.decide.actions import DeleteCluster, ReleaseWorkers
from rlhf_operator.decide.decision import Draft
from rlhf_operator.decide.driver_life import stop_driver
from rlhf_operator.decide.endings import fail
from rlhf_operator.decide.predicates import is_cluster_worth_keeping, is_driver_gone


def fail_past_deadline(draft: Draft) -> None:
    """Fail a job that has run for longer than activeDeadlineSeconds."""
    assert draft.observed.job.job is not None
    limit = draft.observed.job.job.spec.active_deadline_seconds
    progress = draft.status.progress
    if progress is None or progress.step == 0:
        saved = "it had trained no step"
    else:
        saved = (
            "its progress is saved: the job continues from there if it is deleted, and created "
            "again with a later deadline and the same storage"
        )
    fail(
        draft,
        "DeadlineExceeded",
        f"it ran for longer than activeDeadlineSeconds, {limit}; {saved}",
    )
    clean_up(draft)


def clean_up(draft: Draft) -> None:
    """After the job's end: stop the driver, keep the cluster for its time, then delete it."""
    end = draft.status.completion_time or draft.now
    draft.set(completion_time=end)
    # -1: no status was written yet.
    if draft.status.observed_generation not in (-1, draft.observed.job.generation):
        draft.record_event(
            "JobHasEnded",
            "a job that has ended can only change clusterTTLSeconds: to continue from its "
            "checkpoints, delete it, and create it again with the same name, storage and subPath",
        )
    if draft.status.cluster is None and not draft.observed.owned_clusters:
        return
    # A driver may still run: after the deadline, or while it lingers for its acknowledgement.
    stop_driver(draft)
    if not is_driver_gone(draft.snapshot):
        return
    job = draft.observed.job.job
    ttl = job.spec.seconds_cluster_is_kept if job else 0
    left = ttl - draft.snapshot.seconds_since(end)
    if left > 0 and is_cluster_worth_keeping(draft.snapshot):
        _release_workers(draft, ttl)
        draft.requeue_after(left)
    else:
        _delete_last_cluster(draft)


def _release_workers(draft: Draft, ttl: int) -> None:
    """Give the devices of an ended job back; its head stays for its logs and dashboard."""
    assert draft.status.cluster is not None
    cluster = draft.observed.cluster(draft.status.cluster.name)
    assert cluster is not None
    # A queue takes a cluster of another size for a new one, and suspends it with its head.
    if cluster.num_desired_workers == 0 or cluster.is_queued:
        return
    draft.do(ReleaseWorkers(cluster.name, cluster.uid))
    message = f"the job has ended: its workers are released, its head stays for {ttl} s"
    draft.set_condition(ConditionType.CLUSTER_READY, ConditionStatus.FALSE, "Released", message)


def _delete_last_cluster(draft: Draft) -> None:
    if draft.observed.owned_clusters:
        delete_clusters(draft)
        draft.requeue_after(draft.settings.wait_seconds)
    else:
        draft.set(cluster=None)
        draft.remove_condition(ConditionType.CLUSTER_READY)


def delete_clusters(draft: Draft) -> None:
    """Delete every cluster that the job owns."""
    for cluster in draft.observed.owned_clusters:
        if not cluster.is_deleting:
            draft.do(DeleteCluster(cluster.name, cluster.uid))


def leave_to_kubernetes(draft: Draft) -> None:
    """Do nothing for a job that is being deleted."""
    # The job owns its objects: Kubernetes' garbage collector deletes them, even if no operator is
    # left. With `kubectl delete --cascade=orphan` they are meant to stay.


def reset_cluster(draft: Draft) -> None:
    # Failures of this cluster say nothing about the next one, so their counters start again.
    restarts = draft.status.restarts
    fresh = {
        "next_time": None,
        "since_checkpoint": 0,
        "disruptions_since_checkpoint": 0,
        "in_a_row": 0,
    }
    draft.set(cluster=None, driver=None, restarts=restarts.model_copy(update=fresh))
    draft.remove_condition(ConditionType.CLUSTER_READY)
