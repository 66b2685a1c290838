"""Transitions that stop a driver so that the job can continue later: suspension and edits."""

from __future__ import annotations

from rlhf_api.status import ConditionStatus, ConditionType, JobPhase
from rlhf_operator.decide.cluster_life import follow_cluster
from rlhf_operator.decide.decision import Draft
from rlhf_operator.decide.driver_life import stop_driver
from rlhf_operator.decide.predicates import has_ended, is_driver_gone
from rlhf_operator.decide.teardown import delete_clusters, reset_cluster


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
    # Before the deletion: else the cluster counts as lost if the suspension is then taken back.
    reset_cluster(draft)
    # The deadline starts again with the next driver.
    draft.set(start_time=None)
    if draft.observed.owned_clusters:
        delete_clusters(draft)
        draft.requeue_after(draft.settings.poll_seconds)
        return
    message = "spec.suspend is true: the job has no cluster, and continues when that is false"
    draft.set_phase(JobPhase.SUSPENDED, "Requested", message)


def replace_outdated(draft: Draft) -> None:
    """Stop the driver of an earlier manifest; a cluster of the current one follows.

    A manifest can change while the job is suspended or about to be.
    """
    steps = "a new cluster starts"
    if not is_driver_gone(draft.snapshot):
        steps = f"the driver saves and ends, then {steps}"
    phase = JobPhase.PROVISIONING if draft.status.driver is None else JobPhase.RESTARTING
    draft.set_phase(phase, "ManifestChanged", f"the manifest has changed: {steps}")
    stop_driver(draft)
    if is_driver_gone(draft.snapshot):
        reset_cluster(draft)
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
