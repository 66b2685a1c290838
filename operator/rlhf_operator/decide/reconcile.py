"""What to do about a job, by what was observed: the operator's one decision. Pure.

It is made anew at every look, from what is there and what the status remembers, never from what an
event said. The status is written before anything is done, so whatever is cut short is done again:

    Pending ─> Planning ─> Provisioning ─> Running ─> Succeeded | Failed
       ^                        ^  └── Restarting <──┘
       └──────── Suspended <────┴───────────┘
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from rlhf_api.on_cluster import KUBERAY
from rlhf_api.status import (
    ArtifactStatus,
    ClusterStatus,
    ConditionStatus,
    ConditionType,
    JobPhase,
)
from rlhf_operator.decide.acceptance import refusal_of
from rlhf_operator.decide.actions import DeleteCluster, HoldJob, MakeCluster, ReleaseJob
from rlhf_operator.decide.api_errors import follow_trouble
from rlhf_operator.decide.cluster_life import follow_cluster
from rlhf_operator.decide.draft import Decision, Draft
from rlhf_operator.decide.driver_life import stop_driver
from rlhf_operator.decide.endings import fail, has_ended
from rlhf_operator.decide.lost_pods import pods_that_may_end
from rlhf_operator.decide.observed import Observed, PodSeen, Refusal
from rlhf_operator.decide.settings import Settings


def reconcile(seen: Observed, settings: Settings, now: datetime) -> Decision:
    """Decide on a job that is this operator's."""
    draft = Draft(seen, settings, now)
    if seen.other_release is not None:
        return Decision(seen.job.status, (), (), (), settings.wait_seconds)
    if seen.job.is_deleting:
        _take_cluster_away(draft)
    elif has_ended(draft):
        _tidy_up(draft)
    else:
        _proceed(draft)
    follow_trouble(draft)
    return draft.decision()


def _proceed(draft: Draft) -> None:
    """With a job that has not ended."""
    job = draft.seen.job.job
    if draft.status.cluster is not None:  # its driver trains on, whatever the manifest says
        _set_accepted(draft, draft.seen.job.problem)
        _pin(draft)
    if job is not None and job.spec.suspend:
        _suspend(draft)
    elif _is_overdue(draft):
        _end_overdue(draft)
    elif draft.is_outdated:
        _replace_outdated(draft)
    elif draft.status.cluster is None:
        _begin(draft)
    elif _is_stopped(draft):
        follow_cluster(draft, draft.status.cluster)


def _begin(draft: Draft) -> None:
    """Check and plan; then make the job's next cluster, when nothing of the last one is left."""
    if _waits_for_room(draft):
        return
    refusal = refusal_of(draft.seen)
    if refusal is not None:
        _reject(draft, refusal)
    elif draft.seen.plan is None:
        draft.enter(JobPhase.PLANNING, "Planning", "the plan is being made")
        draft.look_again(draft.settings.wait_seconds)
    else:
        _accept(draft)
        if not (_lacks_kuberay(draft) or _waits_for_its_turn(draft) or _waits_for_its_name(draft)):
            _make_cluster(draft)
            return
    _release(draft)


def _set_accepted(draft: Draft, refusal: Refusal | None) -> None:
    """Say whether the manifest can be run."""
    if refusal is None:
        told = "the manifest can be run"
        draft.conclude(ConditionType.ACCEPTED, ConditionStatus.TRUE, "Accepted", told)
        return
    draft.conclude(ConditionType.ACCEPTED, ConditionStatus.FALSE, refusal.reason, refusal.message)
    draft.look_again(draft.settings.wait_seconds)


def _accept(draft: Draft) -> None:
    _set_accepted(draft, None)
    _pin(draft)
    plan = draft.seen.plan
    assert plan is not None
    if plan.plan is not None:
        draft.set(plan=plan.plan)
        draft.conclude(ConditionType.PLANNED, ConditionStatus.TRUE, "Planned", plan.plan.summary)
    else:
        draft.set(plan=None)  # what was planned before was of another manifest
        draft.conclude(ConditionType.PLANNED, ConditionStatus.UNKNOWN, "DriverPlans", plan.unknown)


def _pin(draft: Draft) -> None:
    """Keep what the chart's defaults gave the job, and what its cluster was made from."""
    cluster, digest = draft.status.cluster, draft.seen.job.digest
    if draft.seen.job.defaults is not None:
        draft.set(defaults=draft.seen.job.defaults)
    if cluster is not None and cluster.manifest_digest is None:  # an earlier release's
        draft.set(cluster=cluster.model_copy(update={"manifest_digest": digest}))


def _reject(draft: Draft, refusal: Refusal) -> None:
    """Say why the job is not run."""
    _set_accepted(draft, refusal)
    draft.enter(JobPhase.PENDING, refusal.reason, refusal.message, is_warning=True, is_stuck=True)


def _lacks_kuberay(draft: Draft) -> bool:
    """Whether nobody could make pods."""
    if draft.seen.has_kuberay:
        return False
    message = f"this cluster does not know RayClusters: install KubeRay {KUBERAY} or newer"
    draft.enter(JobPhase.PENDING, "KubeRayMissing", message, is_warning=True, is_stuck=True)
    draft.look_again(draft.settings.wait_seconds)
    return True


def _waits_for_its_turn(draft: Draft) -> bool:
    """Whether the back-off before the next attempt is not over."""
    due = draft.status.restarts.next_time
    if due is None or due <= draft.now:
        return False
    draft.look_again((due - draft.now).total_seconds())
    return True


def _waits_for_room(draft: Draft) -> bool:
    """Whether something is left of a cluster that was."""
    pods = draft.seen.own_pods
    if not (_delete_clusters(draft) or pods_that_may_end(draft, pods)):
        return False
    if draft.status.phase is not JobPhase.RESTARTING:  # else the failure's reason is worth more
        message = "waiting until the pods of the cluster before are gone"
        draft.enter(JobPhase.PROVISIONING, "WaitingForOldPods", message)
    draft.look_again(draft.settings.poll_seconds)
    return True


def _leave_behind(draft: Draft, pods: Sequence[PodSeen]) -> None:
    """Tell of pods on lost nodes, for which the next cluster does not wait."""
    if pods:
        draft.note(
            "NodeLost",
            f"the pod {pods[0].name} cannot end, as its node is lost: nothing waits for it. Delete "
            "the node, or the pod by force",
            is_warning=True,
        )


def _waits_for_its_name(draft: Draft) -> bool:
    """Whether another's cluster stands where the next one is to be."""
    name = draft.seen.job.cluster_name(draft.status.attempts + 1)
    if draft.seen.cluster(name) is None:
        return False
    message = (
        f"a RayCluster named {name} is there that this job does not own: delete it, or give "
        "the job another name"
    )
    draft.enter(JobPhase.PENDING, "NameTaken", message, is_warning=True, is_stuck=True)
    draft.look_again(draft.settings.wait_seconds)
    return True


def _make_cluster(draft: Draft) -> None:
    attempt = draft.status.attempts + 1
    name = draft.seen.job.cluster_name(attempt)
    restarts = draft.status.restarts.model_copy(update={"next_time": None})
    cluster = ClusterStatus(name=name, attempt=attempt, manifest_digest=draft.seen.job.digest)
    draft.set(attempts=attempt, cluster=cluster, restarts=restarts)
    phase = JobPhase.RESTARTING if restarts.clusters else JobPhase.PROVISIONING
    draft.enter(phase, "Provisioning", f"making the RayCluster {name}")
    draft.conclude(
        ConditionType.CLUSTER_READY, ConditionStatus.FALSE, "Provisioning", "no pod is there yet"
    )
    draft.set(artifacts=_artifacts(draft))  # its GPUs are counted when no queue holds it back
    _leave_behind(draft, draft.seen.own_pods)
    draft.do(HoldJob(), MakeCluster(attempt))
    draft.look_again(draft.settings.wait_seconds)


def _artifacts(draft: Draft) -> ArtifactStatus:
    """Where the job's things will lie: told from the start, kept for ever."""
    root = draft.seen.job.run_folder
    return ArtifactStatus(
        checkpoints=f"{root}/checkpoints", model=f"{root}/model", report=f"{root}/report.html"
    )


def _is_overdue(draft: Draft) -> bool:
    job, start = draft.seen.job.job, draft.status.start_time
    limit = None if job is None else job.spec.active_deadline_seconds
    if limit is None or start is None:
        return False
    left = limit - draft.seconds_since(start)
    if left > 0:
        draft.look_again(left)
    return left <= 0


def _end_overdue(draft: Draft) -> None:
    assert draft.seen.job.job is not None
    limit = draft.seen.job.job.spec.active_deadline_seconds
    fail(
        draft,
        "DeadlineExceeded",
        f"it ran for longer than activeDeadlineSeconds, {limit}; what it reached is saved: a job "
        "with a later deadline and the same storage goes on from there",
    )
    _tidy_up(draft)


def _suspend(draft: Draft) -> None:
    """Let the driver save, give the cluster back, and wait."""
    if not stop_driver(draft):
        draft.conclude(
            ConditionType.SUSPENDED,
            ConditionStatus.UNKNOWN,
            "Stopping",
            "the driver saves and ends; then the cluster is given back",
        )
        return
    if has_ended(draft):  # it finished while it was told to wait
        return
    if _delete_clusters(draft):
        draft.look_again(draft.settings.poll_seconds)
        return
    _forget_cluster(draft)
    draft.set(start_time=None)
    message = "spec.suspend is true: it holds no cluster, and goes on when that is false"
    draft.enter(JobPhase.SUSPENDED, "Requested", message)
    _release(draft)


def _replace_outdated(draft: Draft) -> None:
    """The manifest was changed while the job waited, or was to wait, and is not that of its cluster
    any more: the driver saves and ends, and a cluster of the new manifest follows."""
    message = (
        "the manifest has changed: the driver saves and ends, a cluster of the new one follows"
    )
    draft.enter(JobPhase.RESTARTING, "ManifestChanged", message)
    if stop_driver(draft):
        _forget_cluster(draft)
        draft.look_again(0)


def _is_stopped(draft: Draft) -> bool:
    """Whether a driver that was told to end has ended, though its job is to run on: a suspension
    was taken back while it saved. The next driver follows; that is nobody's failure."""
    driver = draft.status.driver
    if driver is None or driver.has_ended or driver.stop_time is None:
        return True
    message = f"the driver before, {driver.submission_id}, saves and ends first"
    draft.enter(JobPhase.RESTARTING, "WaitingForOldDriver", message)
    return stop_driver(draft) and not has_ended(draft)


def _forget_cluster(draft: Draft) -> None:
    """What was made, and how it failed, is of no account for the cluster that follows."""
    restarts = draft.status.restarts
    fresh = {"next_time": None, "since_checkpoint": 0, "in_a_row": 0}
    draft.set(cluster=None, driver=None, restarts=restarts.model_copy(update=fresh))
    draft.drop(ConditionType.CLUSTER_READY)


def _tidy_up(draft: Draft) -> None:
    """After the end: let the driver go, keep the cluster for its time, then take it away."""
    ended = draft.status.completion_time or draft.now
    draft.set(completion_time=ended)
    if draft.status.observed_generation not in (-1, draft.seen.job.generation):
        draft.note(
            "JobHasEnded",
            "of a job that has ended nothing can be changed but how long its cluster is kept: to "
            "train on from its checkpoints, make a new job with the same storage and subPath",
        )
    if draft.status.cluster is None and not draft.seen.clusters:
        _release(draft)
        return
    if not stop_driver(draft):
        return
    job = draft.seen.job.job
    left = (job.spec.ttl_seconds_after_finished if job else 0) - draft.seconds_since(ended)
    if left > 0 and _has_pods(draft):
        draft.look_again(left)
    else:
        _take_cluster_away(draft)


def _has_pods(draft: Draft) -> bool:
    """Whether there is a cluster that is worth keeping for a while."""
    name = draft.status.cluster.name if draft.status.cluster else ""
    seen = draft.seen.cluster(name)
    return seen is not None and seen.is_ours and not (seen.is_deleting or seen.is_suspended)


def _take_cluster_away(draft: Draft) -> None:
    if _delete_clusters(draft):
        draft.look_again(draft.settings.wait_seconds)
        return
    if draft.status.cluster is not None:
        draft.set(cluster=None)
        draft.drop(ConditionType.CLUSTER_READY)
    _release(draft)


def _delete_clusters(draft: Draft) -> bool:
    """Delete what the job owns; whether something is still there."""
    ours = [cluster for cluster in draft.seen.clusters if cluster.is_ours]
    draft.do(*(DeleteCluster(each.name, each.uid) for each in ours if not each.is_deleting))
    return bool(ours)


def _release(draft: Draft) -> None:
    if draft.seen.job.has_finalizer:
        draft.do(ReleaseJob())
