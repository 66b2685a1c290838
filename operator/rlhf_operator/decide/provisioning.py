"""Transitions of a job without a cluster, up to the creation of its next one."""

from __future__ import annotations

from rlhf_api.deprecations import deprecations_in
from rlhf_api.on_cluster import KUBERAY
from rlhf_api.status import ArtifactStatus, ClusterStatus, ConditionStatus, ConditionType, JobPhase
from rlhf_operator.decide.acceptance import find_refusal
from rlhf_operator.decide.actions import CreateCluster
from rlhf_operator.decide.decision import Draft
from rlhf_operator.decide.endings import await_next_start
from rlhf_operator.decide.observed import Refusal
from rlhf_operator.decide.predicates import is_backing_off
from rlhf_operator.decide.teardown import delete_clusters


def await_leftovers(draft: Draft) -> None:
    """Delete what is left of the cluster before, and wait until its pods are gone."""
    if draft.observed.owned_clusters:
        delete_clusters(draft)
    else:
        draft.requeue_when_lost(draft.observed.own_pods)
    # While restarting, the failure's reason is worth more than this one.
    if draft.status.phase is not JobPhase.RESTARTING:
        message = "waiting until the pods of the previous cluster are deleted"
        draft.set_phase(JobPhase.PROVISIONING, "WaitingForOldPods", message)
    draft.requeue_after(draft.settings.poll_seconds)


def reject(draft: Draft) -> None:
    """Report why the job cannot run."""
    refusal = find_refusal(draft.observed)
    assert refusal is not None
    set_accepted(draft, refusal)
    draft.set_phase(
        JobPhase.PENDING, refusal.reason, refusal.message, is_warning=True, is_stuck=True
    )


def await_plan(draft: Draft) -> None:
    """Wait for the planner."""
    # A new process of the operator plans again. A job that backs off has nothing to report of that.
    if is_backing_off(draft.snapshot):
        await_next_start(draft)
    else:
        draft.set_phase(JobPhase.PLANNING, "Planning", "the plan is being made")
    draft.requeue_after(draft.settings.wait_seconds)


def await_kuberay(draft: Draft) -> None:
    """Wait until KubeRay is installed."""
    _accept(draft)
    message = f"this cluster has no kind RayCluster: install KubeRay {KUBERAY} or newer"
    draft.set_phase(JobPhase.PENDING, "KubeRayMissing", message, is_warning=True, is_stuck=True)
    draft.requeue_after(draft.settings.wait_seconds)


def await_backoff(draft: Draft) -> None:
    """Wait until the next start is due."""
    _accept(draft)
    await_next_start(draft)


def await_earlier_job(draft: Draft) -> None:
    """Wait until nothing is left of a deleted job of this name."""
    # Both jobs write to the same folder.
    _accept(draft)
    message = "waiting until the cluster and the pods of the deleted job of this name are gone"
    draft.set_phase(JobPhase.PROVISIONING, "WaitingForOldPods", message)
    draft.requeue_when_lost(draft.observed.leftover_pods)
    draft.requeue_after(draft.settings.wait_seconds)


def await_name(draft: Draft) -> None:
    """Wait until the next cluster's name is free."""
    _accept(draft)
    name = draft.observed.job.cluster_name(draft.status.attempts + 1)
    message = (
        f"a RayCluster named {name} exists that this job does not own: delete it, or give "
        "the job another name"
    )
    draft.set_phase(JobPhase.PENDING, "NameTaken", message, is_warning=True, is_stuck=True)
    draft.requeue_after(draft.settings.wait_seconds)


def create_cluster(draft: Draft) -> None:
    """Create the cluster of the next attempt."""
    _accept(draft)
    attempt = draft.status.attempts + 1
    name = draft.observed.job.cluster_name(attempt)
    restarts = draft.status.restarts.model_copy(update={"next_time": None})
    cluster = ClusterStatus(name=name, attempt=attempt, manifest_digest=draft.observed.job.digest)
    draft.set(attempts=attempt, cluster=cluster, restarts=restarts)
    phase = JobPhase.RESTARTING if restarts.clusters else JobPhase.PROVISIONING
    draft.set_phase(phase, "Provisioning", f"creating the RayCluster {name}")
    draft.set_condition(
        ConditionType.CLUSTER_READY, ConditionStatus.FALSE, "Provisioning", "no pod exists yet"
    )
    # `gpus` stays 0 until a queue has admitted the cluster.
    draft.set(artifacts=_artifacts(draft))
    _report_lost_pods(draft)
    draft.do(CreateCluster(attempt))
    draft.requeue_after(draft.settings.wait_seconds)


def set_accepted(draft: Draft, refusal: Refusal | None) -> None:
    """Set the condition Accepted. None: the manifest can run."""
    if refusal is None:
        job = draft.observed.job.job
        notes = [] if job is None else [entry.message for entry in deprecations_in(job.spec)]
        message = "; ".join(["the manifest can run", *notes])
        draft.set_condition(ConditionType.ACCEPTED, ConditionStatus.TRUE, "Accepted", message)
        return
    draft.set_condition(
        ConditionType.ACCEPTED, ConditionStatus.FALSE, refusal.reason, refusal.message
    )
    draft.requeue_after(draft.settings.wait_seconds)


def pin_manifest(draft: Draft) -> None:
    """Record the chart's defaults in force, and the digest of the cluster's manifest."""
    cluster, digest = draft.status.cluster, draft.observed.job.digest
    if draft.observed.job.defaults is not None:
        draft.set(defaults=draft.observed.job.defaults)
    if cluster is not None and cluster.manifest_digest is None:  # an earlier release's
        draft.set(cluster=cluster.model_copy(update={"manifest_digest": digest}))


def _accept(draft: Draft) -> None:
    set_accepted(draft, None)
    pin_manifest(draft)
    result = draft.observed.plan
    assert result is not None
    if result.plan is not None:
        draft.set(plan=result.plan)
        draft.set_condition(
            ConditionType.PLANNED, ConditionStatus.TRUE, "Planned", result.plan.summary
        )
    else:
        draft.set(plan=None)  # the plan before was of another manifest
        draft.set_condition(
            ConditionType.PLANNED, ConditionStatus.UNKNOWN, "DriverPlans", result.unknown
        )


def _artifacts(draft: Draft) -> ArtifactStatus:
    """Return the addresses of the job's output; they never change."""
    root = draft.observed.job.run_folder
    return ArtifactStatus(
        checkpoints=f"{root}/checkpoints", model=f"{root}/model", report=f"{root}/report.html"
    )


def _report_lost_pods(draft: Draft) -> None:
    # All pods that are left are on lost nodes. The next cluster does not wait for them.
    pods = draft.observed.leftover_pods
    if pods:
        draft.record_event(
            "NodeLost",
            f"the pod {pods[0].name} cannot end, as its node is lost; nothing waits for it. "
            "Delete the node, or the pod by force",
            is_warning=True,
        )
