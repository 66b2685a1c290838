"""Transitions that release the cluster: suspension, edits, deadlines, and the end of a job."""

from __future__ import annotations

from rlhf_api.status import ConditionStatus, ConditionType, JobPhase
from rlhf_operator.decide.actions import DeleteCluster, RemoveFinalizer
from rlhf_operator.decide.cluster_life import follow_cluster
from rlhf_operator.decide.draft import Draft
from rlhf_operator.decide.driver_life import stop_driver
from rlhf_operator.decide.endings import fail
from rlhf_operator.decide.predicates import has_ended, is_cluster_worth_keeping, is_driver_gone


def suspend(draft: Draft) -> None:
    """Stop the driver, release the cluster, and wait."""
    stop_driver(draft)
    if not is_driver_gone(draft.snapshot):
        draft.set_condition(
            ConditionType.SUSPENDED,
            ConditionStatus.UNKNOWN,
            "Stopping",
            "the driver saves and ends; then the cluster is deleted",
        )
        return
    if has_ended(draft.snapshot):  # the driver finished all steps while it was to stop
        return
    if draft.observed.owned_clusters:
        delete_clusters(draft)
        draft.requeue_after(draft.settings.poll_seconds)
        return
    _reset_cluster(draft)
    # The deadline starts again with the next driver.
    draft.set(start_time=None)
    message = "spec.suspend is true: the job has no cluster, and continues when that is false"
    draft.set_phase(JobPhase.SUSPENDED, "Requested", message)
    release(draft)


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


def replace_outdated(draft: Draft) -> None:
    """Stop the driver of an earlier manifest; a cluster of the current one follows.

    A manifest can change while the job is suspended or about to be.
    """
    message = "the manifest has changed: the driver saves and ends, then a new cluster starts"
    draft.set_phase(JobPhase.RESTARTING, "ManifestChanged", message)
    stop_driver(draft)
    if is_driver_gone(draft.snapshot):
        _reset_cluster(draft)
        draft.requeue_after(0)


def await_stopped_driver(draft: Draft) -> None:
    """Wait for the end of a driver that was asked to stop, then go on with the cluster.

    This happens when a suspension is taken back while the driver saves. It is no failure.
    """
    driver, cluster = draft.status.driver, draft.status.cluster
    assert driver is not None and cluster is not None
    message = f"the previous driver, {driver.submission_id}, saves and ends first"
    draft.set_phase(JobPhase.RESTARTING, "WaitingForOldDriver", message)
    stop_driver(draft)
    if is_driver_gone(draft.snapshot) and not has_ended(draft.snapshot):
        follow_cluster(draft)


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


def _reset_cluster(draft: Draft) -> None:
    # Failures of this cluster say nothing about the next one, so their counters start again.
    restarts = draft.status.restarts
    fresh = {"next_time": None, "since_checkpoint": 0, "in_a_row": 0}
    draft.set(cluster=None, driver=None, restarts=restarts.model_copy(update=fresh))
    draft.remove_condition(ConditionType.CLUSTER_READY)
