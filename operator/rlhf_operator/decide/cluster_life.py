"""A cluster from its first pod to a running driver, and the ways to lose it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rlhf_api.on_cluster import QUEUE_LABEL
from rlhf_api.status import ClusterStatus, ConditionStatus, ConditionType, JobPhase
from rlhf_operator.decide.actions import (
    CreateCluster,
    DeleteCluster,
    DeletePod,
    RestoreOwnedObjects,
)
from rlhf_operator.decide.decision import Draft
from rlhf_operator.decide.disruptions import is_head_disrupted
from rlhf_operator.decide.driver_life import follow_driver
from rlhf_operator.decide.driver_start import phase_before_driver, start_driver
from rlhf_operator.decide.endings import await_next_start, end_driver, fail, restart_or_fail
from rlhf_operator.decide.failures import Failure, node_lost
from rlhf_operator.decide.node_pools import cluster_pools
from rlhf_operator.decide.observed import ObservedCluster, ObservedPod, PodProblem
from rlhf_operator.decide.pod_messages import describe_pods, worst_problem
from rlhf_operator.decide.predicates import (
    Snapshot,
    has_current_head,
    has_old_head,
    is_backing_off,
    is_past_start_deadline,
    lost_pods,
    partial_cluster_limit,
    partial_cluster_seconds_left,
    remaining_pods,
    start_seconds_left,
)


def follow_cluster(draft: Draft) -> None:
    """Bring a driver to the job's cluster and watch over both.

    If the manifest cannot be read any more, nothing is started: a running driver is followed to
    its end.
    """
    cluster = draft.status.cluster
    assert cluster is not None
    _delete_earlier(draft, cluster)
    observed = draft.observed.cluster(cluster.name)
    if observed is None or not observed.is_owned:
        _recreate(draft, cluster)
    elif observed.is_deleting:
        _lose(draft, cluster, "it is being deleted")
        draft.requeue_after(draft.settings.poll_seconds)
    # The head accepts a token that this operator cannot compute. That is no failure of the job.
    elif observed.has_other_key:
        cause = "the operator's key from which its token derives was replaced"
        _lose(draft, cluster, cause, is_counted=False)
    elif edit := _edited_workers(draft, observed):
        _lose(draft, cluster, edit)
    elif observed.is_suspended:
        _await_admission(draft, cluster)
    else:
        _run(draft, _set_admitted(draft, cluster), observed)


def _edited_workers(draft: Draft, observed: ObservedCluster) -> str:
    """Describe how somebody has changed a cluster's number of workers; empty: nobody has."""
    job = draft.observed.job.cluster_job
    if job is None:
        return ""
    # The plan is made for exactly these. With fewer a job would start on a part of its devices,
    # and others would be occupied in vain.
    planned = {pool.name: pool.nodes for pool in cluster_pools(job)}
    if dict(observed.desired_workers) == planned:
        return ""
    return (
        f"its workers were edited: got {_counts(observed.desired_workers)}, allowed "
        f"{_counts(planned)}; edit the job's nodePools instead"
    )


def _counts(workers: Mapping[str, int]) -> str:
    return ", ".join(f"{number} of pool {pool}" for pool, number in workers.items())


def _delete_earlier(draft: Draft, cluster: ClusterStatus) -> None:
    # A cluster of an earlier attempt can appear late: its watch event came after this attempt's
    # cluster was created.
    for other in draft.observed.owned_clusters:
        if other.name != cluster.name and not other.is_deleting:
            draft.do(DeleteCluster(other.name, other.uid))


def _recreate(draft: Draft, cluster: ClusterStatus) -> None:
    """Handle a cluster that does not exist: it was never created, or somebody deleted it."""
    pods = draft.observed.cluster_pods(cluster.name)
    other = draft.observed.cluster(cluster.name)
    # The cluster of a deleted job of the same name is waited for: it is no loss.
    if other is not None and not other.is_of_earlier_job:
        _lose(draft, cluster, "another RayCluster that this job does not own has its name")
    elif cluster.head_pod_uid is not None:
        _lose(draft, cluster, "it was deleted")
    elif remaining_pods(draft.snapshot, pods):
        draft.requeue_when_lost(pods)
        draft.requeue_after(draft.settings.poll_seconds)
    elif is_past_start_deadline(draft.snapshot):
        _fail_start(draft)
    elif draft.observed.job.job is not None:
        _requeue_at_start_deadline(draft)
        draft.do(CreateCluster(cluster.attempt))
        draft.requeue_after(draft.settings.wait_seconds)


def _lose(draft: Draft, cluster: ClusterStatus, cause: str, is_counted: bool = True) -> None:
    end_driver(draft)
    message = f"the RayCluster {cluster.name} is lost: {cause}"
    restart_or_fail(
        draft, Failure("ClusterLost", message, needs_new_cluster=True, is_counted=is_counted)
    )


def _await_admission(draft: Draft, cluster: ClusterStatus) -> None:
    """Wait for a suspended cluster: a queue has not admitted it yet, or has evicted it."""
    if not has_current_head(draft.snapshot, cluster):
        # The driver ends with its head. Until the head's pod is gone, the driver lives on if the
        # suspension is taken back.
        end_driver(draft)
        cluster = cluster.model_copy(update={"head_pod_uid": None})
        draft.set(start_time=None, cluster=cluster)
    if not cluster.admitted:
        message = f"{_queue_name(draft)} has not admitted the cluster yet"
        draft.set_phase(JobPhase.PENDING, "Queued", message)
        draft.set_condition(ConditionType.CLUSTER_READY, ConditionStatus.UNKNOWN, "Queued", message)
    else:
        message = "a queue or a person has suspended the cluster; admitted again, the job continues"
        draft.set_phase(JobPhase.SUSPENDED, "Evicted", message, is_warning=True)
        draft.set_condition(
            ConditionType.CLUSTER_READY, ConditionStatus.UNKNOWN, "Evicted", message
        )
    draft.requeue_after(draft.settings.wait_seconds)


def _queue_name(draft: Draft) -> str:
    job = draft.observed.job.job
    name = job.metadata.labels.get(QUEUE_LABEL) if job else None
    if name is None:
        return "a queue"
    return f"the queue {name} (`kubectl describe workloads` says why)"


def _set_admitted(draft: Draft, cluster: ClusterStatus) -> ClusterStatus:
    # Tells a later suspension, an eviction, from one that a queue has not admitted yet.
    if not cluster.admitted:
        cluster = cluster.model_copy(update={"admitted": True})
        draft.set(cluster=cluster)
    return cluster


def _run(draft: Draft, cluster: ClusterStatus, observed: ObservedCluster) -> None:
    """Follow the driver of an admitted cluster; without a driver, start one or wait for pods."""
    _restore_owned_objects(draft, observed)
    is_ready = draft.observed.is_ready(observed)
    _set_cluster_ready(draft, observed, is_ready)
    driver = draft.status.driver
    pods = draft.observed.cluster_pods(cluster.name)
    if driver is not None and not driver.has_ended and driver.attempt == cluster.attempt:
        if has_current_head(draft.snapshot, cluster):
            follow_driver(draft, driver)
        else:
            _lose_head(draft, cluster)
    elif dirty := _dirty_workers(draft.snapshot, cluster, observed):
        draft.do(*(DeletePod(pod.name, pod.uid) for pod in dirty))
        draft.requeue_after(draft.settings.poll_seconds)
    elif is_backing_off(draft.snapshot):
        await_next_start(draft)
    # An unreadable manifest starts nothing.
    elif draft.observed.job.job is None:
        draft.requeue_after(draft.settings.wait_seconds)
    elif lost := lost_pods(draft.snapshot, pods):
        draft.requeue_when_lost(pods)
        names = (pod.name for pod in lost)
        # KubeRay never replaces a pod whose deletion cannot finish, so only a new cluster helps.
        restart_or_fail(draft, node_lost(names, draft.settings.lost_pod_seconds))
    else:
        draft.requeue_when_lost(pods)
        if is_ready and not has_old_head(draft.snapshot, cluster):
            start_driver(draft, cluster)
        else:
            _wait_for_pods(draft, cluster)


def _restore_owned_objects(draft: Draft, cluster: ObservedCluster) -> None:
    # Without the ConfigMap and the Secret no pod of the cluster can start again; without the
    # NetworkPolicy the pods that run are unprotected.
    is_due = draft.observed.owned_objects_due
    if is_due and draft.observed.job.job is not None and cluster.manifest:
        draft.do(RestoreOwnedObjects(cluster.manifest))


def _lose_head(draft: Draft, cluster: ClusterStatus) -> None:
    end_driver(draft)
    draft.set(cluster=cluster.model_copy(update={"head_pod_uid": None}))
    restart_or_fail(
        draft,
        Failure(
            "HeadLost",
            "the head pod and its driver are lost; KubeRay creates another pod",
            is_disruption=is_head_disrupted(draft.observed),
        ),
    )


def _dirty_workers(
    state: Snapshot, cluster: ClusterStatus, observed: ObservedCluster
) -> list[ObservedPod]:
    """Return the workers with processes of an earlier driver that only their pods' end ends."""
    limit = cluster.replace_workers_before
    if limit is None:
        return []
    return [
        pod
        for pod in state.observed.cluster_pods(observed.name)
        if pod.owner == observed.uid
        and pod.created < limit
        and not (pod.is_head or pod.is_deleting)
    ]


def _set_cluster_ready(draft: Draft, cluster: ObservedCluster, is_ready: bool) -> None:
    pods = draft.observed.cluster_pods(cluster.name)
    message = describe_pods(pods, cluster.desired_workers)
    if is_ready:
        draft.set_condition(ConditionType.CLUSTER_READY, ConditionStatus.TRUE, "Ready", message)
        return
    problem = _blocking_problem(draft, pods)
    reason = problem.reason if problem else "Provisioning"
    if problem and problem is draft.observed.pods_refusal:
        missing = 1 + cluster.num_desired_workers - sum(not pod.is_deleting for pod in pods)
        message = f"{message}; {missing} do not exist: {problem.message}"
    elif problem and problem is draft.observed.recent_problem:
        message = f"{message}; lately: {problem.message}"
    # An event per reason, not per message: messages change with every pod.
    before = draft.snapshot.condition(ConditionType.CLUSTER_READY)
    if problem and (before is None or before.reason != reason):
        draft.record_event(reason, problem.message, is_warning=True)
    draft.set_condition(ConditionType.CLUSTER_READY, ConditionStatus.FALSE, reason, message)


def _blocking_problem(draft: Draft, pods: Sequence[ObservedPod]) -> PodProblem | None:
    """Return the problem that keeps a cluster from being ready."""
    observed = draft.observed
    return worst_problem(pods) or observed.pods_refusal or observed.recent_problem


def _requeue_at_start_deadline(draft: Draft) -> None:
    left = start_seconds_left(draft.snapshot)
    if left is not None and left > 0:
        draft.requeue_after(left)


def _fail_start(draft: Draft) -> None:
    ready = draft.snapshot.condition(ConditionType.CLUSTER_READY)
    job = draft.observed.job.job
    assert ready is not None and job is not None
    fail(
        draft,
        "StartDeadlineExceeded",
        "the cluster's pods were not ready after startDeadlineSeconds, "
        f"{job.spec.start_deadline_seconds}: {ready.message}",
    )


def _wait_for_pods(draft: Draft, cluster: ClusterStatus) -> None:
    """Wait for pods until a limit: then fail, or release the devices of an incomplete cluster."""
    ready = draft.snapshot.condition(ConditionType.CLUSTER_READY)
    assert ready is not None
    if is_past_start_deadline(draft.snapshot):
        _fail_start(draft)
        return
    _requeue_at_start_deadline(draft)
    left = partial_cluster_seconds_left(draft.snapshot, cluster)
    if left is not None and left <= 0:
        _release_devices(draft, cluster, ready.message)
        return
    if left is not None:
        draft.requeue_after(left)
    problem = _blocking_problem(draft, draft.observed.cluster_pods(cluster.name))
    draft.set_phase(
        phase_before_driver(draft.snapshot),
        problem.reason if problem else "WaitingForPods",
        ready.message,
        is_warning=problem is not None,
        is_stuck=problem is not None and problem.needs_change,
        is_recorded=problem is not None,  # by _set_cluster_ready
    )
    draft.requeue_after(draft.settings.wait_seconds)


def _release_devices(draft: Draft, cluster: ClusterStatus, pods: str) -> None:
    limit = partial_cluster_limit(draft.snapshot, cluster)
    message = f"some pods waited for others for {limit:.0f} s: {pods}"
    # The job is not to blame that its devices are in use elsewhere.
    restart_or_fail(draft, Failure("NoRoom", message, needs_new_cluster=True, is_counted=False))
