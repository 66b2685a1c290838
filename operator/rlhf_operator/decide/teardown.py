"""Transitions that release the cluster for good: deadlines, the end and the deletion of a job."""

from __future__ import annotations

from rlhf_api.status import ConditionType
from rlhf_operator.decide.actions import DeleteCluster, RemoveFinalizer
from rlhf_operator.decide.decision import Draft
from rlhf_operator.decide.driver_life import stop_driver
from rlhf_operator.decide.endings import fail
from rlhf_operator.decide.predicates import is_cluster_worth_keeping, is_driver_gone


def fail_past_deadline(draft: Draft) -> None:
    """Fail a job that has run for longer than activeDeadlineSeconds."""
    assert draft.observed.job.job is not None
    limit = draft.observed.job.job.spec.active_deadline_seconds
    fail(
        draft,
        "DeadlineExceeded",
        f"it ran for longer than activeDeadlineSeconds, {limit}; its progress is saved: a job "
        "with a later deadline and the same storage continues from there",
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
            "a job that has ended can only change ttlSecondsAfterFinished: to "
            "continue from its checkpoints, create a new job with the same storage and subPath",
        )
    if draft.status.cluster is None and not draft.observed.clusters:
        release(draft)
        return
    # A driver may still run: after the deadline, or while it lingers for its acknowledgement.
    stop_driver(draft)
    if not is_driver_gone(draft.snapshot):
        return
    job = draft.observed.job.job
    ttl = job.spec.ttl_seconds_after_finished if job else 0
    left = ttl - draft.snapshot.seconds_since(end)
    if left > 0 and is_cluster_worth_keeping(draft.snapshot):
        draft.requeue_after(left)
    else:
        delete_and_release(draft)


def delete_and_release(draft: Draft) -> None:
    """Delete the job's clusters; once they are gone, remove the finalizer."""
    if draft.observed.owned_clusters:
        delete_clusters(draft)
        draft.requeue_after(draft.settings.wait_seconds)
        return
    if draft.status.cluster is not None:
        draft.set(cluster=None)
        draft.remove_condition(ConditionType.CLUSTER_READY)
    release(draft)


def delete_clusters(draft: Draft) -> None:
    """Delete every cluster that the job owns."""
    for cluster in draft.observed.owned_clusters:
        if not cluster.is_deleting:
            draft.do(DeleteCluster(cluster.name, cluster.uid))


def release(draft: Draft) -> None:
    """Remove the finalizer: nothing of the job is left to delete."""
    if draft.observed.job.has_finalizer:
        draft.do(RemoveFinalizer())


def reset_cluster(draft: Draft) -> None:
    # Failures of this cluster say nothing about the next one, so their counters start again.
    restarts = draft.status.restarts
    fresh = {"next_time": None, "since_checkpoint": 0, "in_a_row": 0}
    draft.set(cluster=None, driver=None, restarts=restarts.model_copy(update=fresh))
    draft.remove_condition(ConditionType.CLUSTER_READY)
