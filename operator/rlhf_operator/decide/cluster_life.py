"""A cluster from its first pod to the driver that runs on it, and what can befall it."""

from __future__ import annotations

import hashlib

from rlhf_api.on_cluster import QUEUE_LABEL
from rlhf_api.status import ClusterStatus, Condition, ConditionStatus, ConditionType, JobPhase
from rlhf_operator.decide.actions import (
    DeleteCluster,
    DeletePod,
    HoldJob,
    MakeCluster,
    RestoreCompanions,
)
from rlhf_operator.decide.draft import Draft
from rlhf_operator.decide.driver_life import follow_driver
from rlhf_operator.decide.driver_start import phase_before_driver, start_driver
from rlhf_operator.decide.endings import end_driver, fail, start_over_or_fail
from rlhf_operator.decide.failures import Failure, lost_pods
from rlhf_operator.decide.lost_pods import pods_that_cannot_end, pods_that_may_end
from rlhf_operator.decide.observed import ClusterSeen
from rlhf_operator.decide.pod_messages import describe_pods, worst_problem


def follow_cluster(draft: Draft, cluster: ClusterStatus) -> None:
    """Bring a driver to the job's cluster and look after both.

    Where the manifest cannot be read any more, nothing is started: a driver that lives is followed
    to its end.
    """
    _delete_earlier(draft, cluster)
    seen = draft.seen.cluster(cluster.name)
    if seen is None or not seen.is_ours:
        _replace(draft, cluster)
    elif seen.is_deleting:
        _lose(draft, cluster, "it is being deleted")
        draft.look_again(draft.settings.poll_seconds)
    elif seen.has_other_key:
        _lose(draft, cluster, "the key that its token was made from is no more")
    elif seen.is_suspended:
        _queue(draft, cluster)
    else:
        _run_on(draft, _admitted(draft, cluster), seen)


def _delete_earlier(draft: Draft, cluster: ClusterStatus) -> None:
    """What is left of earlier attempts, because nobody had told of it when this one was made."""
    for each in draft.seen.clusters:
        if each.is_ours and each.name != cluster.name and not each.is_deleting:
            draft.do(DeleteCluster(each.name, each.uid))


def _replace(draft: Draft, cluster: ClusterStatus) -> None:
    """The cluster is not there: it was never made, or somebody deleted it."""
    if draft.seen.cluster(cluster.name) is not None:
        _lose(draft, cluster, "another one has its name, which this job does not own")
    elif cluster.head_pod_uid is not None:
        _lose(draft, cluster, "it is gone")
    elif pods_that_may_end(draft, draft.seen.pods_of(cluster.name)):
        draft.look_again(draft.settings.poll_seconds)
    elif draft.seen.job.job is not None and not _is_late(draft):
        draft.do(HoldJob(), MakeCluster(cluster.attempt))
        draft.look_again(draft.settings.wait_seconds)


def _lose(draft: Draft, cluster: ClusterStatus, how: str) -> None:
    end_driver(draft)
    start_over_or_fail(
        draft,
        Failure("ClusterLost", f"the RayCluster {cluster.name} is lost: {how}", None, True),
    )


def _queue(draft: Draft, cluster: ClusterStatus) -> None:
    """Somebody else has taken the pods away, or not let them in yet: a queue, as a rule."""
    _leave_head(draft, cluster)
    if not cluster.admitted:
        message = f"{_queue_of(draft)} has not let the cluster in yet"
        draft.enter(JobPhase.PENDING, "Queued", message)
        draft.conclude(ConditionType.CLUSTER_READY, ConditionStatus.UNKNOWN, "Queued", message)
    else:
        message = "the cluster was suspended by a queue or a person; it goes on when let in again"
        draft.enter(JobPhase.SUSPENDED, "Evicted", message, is_warning=True)
        draft.conclude(ConditionType.CLUSTER_READY, ConditionStatus.UNKNOWN, "Evicted", message)
    draft.look_again(draft.settings.wait_seconds)


def _queue_of(draft: Draft) -> str:
    job = draft.seen.job.job
    name = job.metadata.labels.get(QUEUE_LABEL) if job else None
    return (
        "a queue" if name is None else f"the queue {name} (`kubectl describe workloads` says why)"
    )


def _leave_head(draft: Draft, cluster: ClusterStatus) -> None:
    """The driver ends with its head; until then it lives, should the suspension be taken back."""
    head = draft.seen.head_pod(cluster.name)
    if head is None or head.uid != cluster.head_pod_uid:
        end_driver(draft)
        draft.set(start_time=None, cluster=cluster.model_copy(update={"head_pod_uid": None}))


def _admitted(draft: Draft, cluster: ClusterStatus) -> ClusterStatus:
    if not cluster.admitted:
        cluster = cluster.model_copy(update={"admitted": True})
        draft.set(cluster=cluster)
    return cluster


def _run_on(draft: Draft, cluster: ClusterStatus, seen: ClusterSeen) -> None:
    """The cluster is ours and let in: is it ready, and does a driver run on it?"""
    _restore_companions(draft, seen)
    is_ready = draft.seen.is_ready(seen)
    _tell_readiness(draft, seen, is_ready)
    driver = draft.status.driver
    if driver is not None and not driver.has_ended and driver.attempt == cluster.attempt:
        head = draft.seen.head_pod(cluster.name)
        if head is None or head.uid != cluster.head_pod_uid:
            _lose_head(draft, cluster)
        else:
            follow_driver(draft, driver)
    elif _replace_dirty_workers(draft, cluster, seen) or not _is_due(draft):
        return
    elif draft.seen.job.job is None:
        draft.look_again(draft.settings.wait_seconds)
    elif lost := pods_that_cannot_end(draft, draft.seen.pods_of(cluster.name)):
        names = (pod.name for pod in lost)
        start_over_or_fail(draft, lost_pods(names, draft.settings.lost_pod_seconds))
    elif is_ready and not _old_heads(draft, cluster):
        start_driver(draft, cluster)
    else:
        _wait_for_pods(draft, cluster)


def _restore_companions(draft: Draft, seen: ClusterSeen) -> None:
    """Without them no pod of the cluster can be made again, or anybody reaches those that run."""
    if draft.seen.companions_due and draft.seen.job.job is not None and seen.manifest:
        draft.do(RestoreCompanions(seen.manifest))


def _lose_head(draft: Draft, cluster: ClusterStatus) -> None:
    end_driver(draft)
    draft.set(cluster=cluster.model_copy(update={"head_pod_uid": None}))
    start_over_or_fail(
        draft, Failure("HeadLost", "the head pod is gone, and with it the driver; it is made again")
    )


def _replace_dirty_workers(draft: Draft, cluster: ClusterStatus, seen: ClusterSeen) -> bool:
    """Delete workers on which an earlier driver left what nobody can end but with their pods;
    whether there were any. KubeRay makes them again."""
    limit = cluster.replace_workers_before
    if limit is None:
        return False
    dirty = [
        pod
        for pod in draft.seen.pods_of(seen.name)
        if pod.owner == seen.uid and pod.created < limit and not (pod.is_head or pod.is_deleting)
    ]
    if dirty:
        draft.do(*(DeletePod(pod.name, pod.uid) for pod in dirty))
        draft.look_again(draft.settings.poll_seconds)
    return bool(dirty)


def _old_heads(draft: Draft, cluster: ClusterStatus) -> bool:
    """Whether a head that goes is still there: a driver could live on it."""
    pods = draft.seen.pods_of(cluster.name)
    return any(pod.is_head and pod.is_deleting for pod in pods)


def _is_due(draft: Draft) -> bool:
    """Whether the wait before the next driver is over."""
    due = draft.status.restarts.next_time
    if due is None or due <= draft.now:
        return True
    draft.look_again((due - draft.now).total_seconds())
    return False


def _tell_readiness(draft: Draft, seen: ClusterSeen, is_ready: bool) -> None:
    pods = draft.seen.pods_of(seen.name)
    message = describe_pods(pods, seen.wanted)
    if is_ready:
        draft.conclude(ConditionType.CLUSTER_READY, ConditionStatus.TRUE, "Ready", message)
        return
    problem = worst_problem(pods) or draft.seen.recent
    reason = problem.reason if problem else "Provisioning"
    if problem and problem is draft.seen.recent:
        message = f"{message}; lately: {problem.message}"
    before = draft.condition(ConditionType.CLUSTER_READY)
    if problem and (before is None or before.reason != reason):
        draft.note(reason, problem.message, is_warning=True)
    draft.conclude(ConditionType.CLUSTER_READY, ConditionStatus.FALSE, reason, message)


def _is_late(draft: Draft) -> bool:
    """Whether pods have been waited for long enough: then the job fails."""
    ready = draft.condition(ConditionType.CLUSTER_READY)
    limit = draft.seen.job.job.spec.start_deadline_seconds if draft.seen.job.job else None
    if ready is None or limit is None or ready.status is not ConditionStatus.FALSE:
        return False
    left = limit - draft.seconds_since(ready.last_transition_time)
    if left > 0:
        draft.look_again(left)
        return False
    fail(
        draft,
        "StartDeadlineExceeded",
        f"the cluster's pods were not ready after startDeadlineSeconds, {limit}: {ready.message}",
    )
    return True


def _holds_for_nothing(draft: Draft, cluster: ClusterStatus, ready: Condition) -> bool:
    """Whether some pods have kept devices for too long while others find no room: then all are
    given back, and asked for again later."""
    pods = draft.seen.pods_of(cluster.name)
    limit = _room_seconds(draft, cluster)
    left = limit - draft.seconds_since(ready.last_transition_time)
    if not any(pod.is_ready and not pod.is_head for pod in pods):
        return False
    if left > 0:
        draft.look_again(left)
        return False
    message = f"some pods waited for others for {limit:.0f} s: {ready.message}"
    start_over_or_fail(draft, Failure("NoRoom", message, needs_new_cluster=True, is_counted=False))
    return True


def _room_seconds(draft: Draft, cluster: ClusterStatus) -> float:
    """Up to half as much again as is set, for every job and attempt its own: two jobs that hold
    what the other one needs do not give it back in the same moment for ever."""
    digest = hashlib.sha256(f"{draft.seen.job.uid}/{cluster.attempt}".encode()).digest()
    return draft.settings.room_seconds * (1 + digest[0] / 512)


def _wait_for_pods(draft: Draft, cluster: ClusterStatus) -> None:
    """No driver runs, because pods are missing."""
    ready = draft.condition(ConditionType.CLUSTER_READY)
    assert ready is not None
    if _is_late(draft) or _holds_for_nothing(draft, cluster, ready):
        return
    problem = worst_problem(draft.seen.pods_of(cluster.name))
    reason = problem.reason if problem else "WaitingForPods"
    draft.enter(phase_before_driver(draft), reason, ready.message)
    draft.look_again(draft.settings.wait_seconds)
