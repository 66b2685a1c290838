"""Conditions on a job for `reconcile` and its transitions. They read a snapshot, write nothing."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from rlhf_api.report import RunPhase
from rlhf_api.status import (
    ClusterStatus,
    Condition,
    ConditionStatus,
    ConditionType,
    JobPhase,
    RLHFJobStatus,
)
from rlhf_operator.decide.observed import Observed, ObservedPod
from rlhf_operator.decide.settings import Settings

FINAL_PHASES = (JobPhase.SUCCEEDED, JobPhase.FAILED)
TRAINING_PHASES = (RunPhase.WARM_START, RunPhase.TRAIN)
"""Phases of a driver's report in which its workers compute steps."""


@dataclass(frozen=True)
class Snapshot:
    """A draft's state at one moment."""

    observed: Observed
    status: RLHFJobStatus
    """With the changes of the decision so far."""
    settings: Settings
    now: datetime

    def condition(self, type: ConditionType) -> Condition | None:
        """Return the condition of this type."""
        return find_condition(self.status, type)

    def seconds_since(self, time: datetime | None) -> float:
        """Return the seconds since a time, at least 0; 0 for None."""
        # The clock that wrote the time may be ahead of this one.
        return 0.0 if time is None else max(0.0, (self.now - time).total_seconds())


def find_condition(status: RLHFJobStatus, type: ConditionType) -> Condition | None:
    """Return the condition of this type."""
    return next((entry for entry in status.conditions if entry.type is type), None)


# The job


def always(_: Snapshot) -> bool:
    """True."""
    return True


def is_deleting(state: Snapshot) -> bool:
    """True if the job is being deleted."""
    return state.observed.job.is_deleting


def has_ended(state: Snapshot) -> bool:
    """True if the job has succeeded or failed."""
    return state.status.phase in FINAL_PHASES


def is_suspension_requested(state: Snapshot) -> bool:
    """True if spec.suspend is set."""
    job = state.observed.job.job
    return job is not None and job.spec.suspend


def deadline_seconds_left(state: Snapshot) -> float | None:
    """Return the seconds until activeDeadlineSeconds is over. None: no deadline runs."""
    job, start = state.observed.job.job, state.status.start_time
    limit = None if job is None else job.spec.active_deadline_seconds
    if limit is None or start is None:
        return None
    return limit - state.seconds_since(start)


def is_past_deadline(state: Snapshot) -> bool:
    """True if the job has run for longer than activeDeadlineSeconds."""
    left = deadline_seconds_left(state)
    return left is not None and left <= 0


def is_outdated(state: Snapshot) -> bool:
    """True if the cluster was created from another manifest than the job's current one."""
    cluster = state.status.cluster
    if cluster is None or cluster.manifest_digest is None:
        return False
    return not state.observed.job.matches(cluster.manifest_digest)


def is_backing_off(state: Snapshot) -> bool:
    """True if the wait before the next start is not over."""
    due = state.status.restarts.next_time
    return due is not None and due > state.now


# Before the cluster


def has_leftovers(state: Snapshot) -> bool:
    """True if a cluster of the job, or a pod of one, still exists. Lost pods do not count."""
    return bool(state.observed.owned_clusters) or bool(
        remaining_pods(state, state.observed.own_pods)
    )


def has_earlier_job_leftovers(state: Snapshot) -> bool:
    """True if a cluster of a deleted job of this name, or a pod of one, still exists.

    Lost pods do not count.
    """
    return any(cluster.is_of_earlier_job for cluster in state.observed.clusters) or bool(
        remaining_pods(state, state.observed.leftover_pods)
    )


def lacks_plan(state: Snapshot) -> bool:
    """True while the plan is being made."""
    return state.observed.plan is None


def lacks_kuberay(state: Snapshot) -> bool:
    """True if nothing on this cluster could create pods."""
    return not state.observed.has_kuberay


def has_name_conflict(state: Snapshot) -> bool:
    """True if a RayCluster that the job does not own has the next cluster's name."""
    name = state.observed.job.cluster_name(state.status.attempts + 1)
    # Own clusters are leftovers, which precede this in the table.
    return state.observed.cluster(name) is not None


# The cluster


def has_cluster(state: Snapshot) -> bool:
    """True if the status names a cluster."""
    return state.status.cluster is not None


def is_cluster_worth_keeping(state: Snapshot) -> bool:
    """True if the job's cluster has pods that a user may want to inspect."""
    cluster = state.observed.cluster(state.status.cluster.name if state.status.cluster else "")
    return (
        cluster is not None
        and cluster.is_owned
        and not (cluster.is_deleting or cluster.is_suspended)
    )


def start_seconds_left(state: Snapshot) -> float | None:
    """Return the seconds until startDeadlineSeconds is over. None: pods are not waited for."""
    ready = state.condition(ConditionType.CLUSTER_READY)
    job = state.observed.job.job
    limit = job.spec.start_deadline_seconds if job else None
    if ready is None or limit is None or ready.status is not ConditionStatus.FALSE:
        return None
    return limit - state.seconds_since(ready.last_transition_time)


def is_past_start_deadline(state: Snapshot) -> bool:
    """True if the pods were waited for longer than startDeadlineSeconds."""
    left = start_seconds_left(state)
    return left is not None and left <= 0


def partial_cluster_limit(state: Snapshot, cluster: ClusterStatus) -> float:
    """Return the seconds that an incomplete cluster may occupy devices: 1 to 1.5 times the setting.

    It differs by job and attempt.
    """
    # Two jobs that each occupy what the other one needs would else release it at the same moment
    # for ever.
    digest = hashlib.sha256(f"{state.observed.job.uid}/{cluster.attempt}".encode()).digest()
    return state.settings.partial_cluster_seconds * (1 + digest[0] / 512)


def partial_cluster_seconds_left(state: Snapshot, cluster: ClusterStatus) -> float | None:
    """Return the seconds until an incomplete cluster releases its devices.

    None: no worker is ready, so nothing is occupied.
    """
    ready = state.condition(ConditionType.CLUSTER_READY)
    pods = state.observed.cluster_pods(cluster.name)
    if ready is None or not any(pod.is_ready and not pod.is_head for pod in pods):
        return None
    return partial_cluster_limit(state, cluster) - state.seconds_since(ready.last_transition_time)


def has_old_head(state: Snapshot, cluster: ClusterStatus) -> bool:
    """True if a head's pod is still terminating: a driver could live on it."""
    pods = state.observed.cluster_pods(cluster.name)
    return any(pod.is_head and pod.is_deleting for pod in pods)


def has_current_head(state: Snapshot, cluster: ClusterStatus) -> bool:
    """True if the head pod that the driver was submitted to still exists."""
    head = state.observed.head_pod(cluster.name)
    return head is not None and head.uid == cluster.head_pod_uid


# The head and the driver


def is_head_dead(state: Snapshot, attempt: int) -> bool:
    """True if the head has not answered for too long, and the operator is not the one cut off."""
    head = state.observed.head
    if head.unanswered_seconds < state.settings.dead_head_seconds:
        return False
    pod = state.observed.head_pod(state.observed.job.cluster_name(attempt))
    # The kubelet probes the same port of the same process. If its probe succeeds, only answers of
    # other heads prove that the operator can reach a head at all.
    return pod is None or not pod.is_ready or head.others_answer


def is_driver_frozen(state: Snapshot) -> bool:
    """True if a driver that promised a heartbeat reports nothing new any more."""
    head = state.observed.head
    if head.heartbeat_seconds is None:
        return False
    limit = max(state.settings.frozen_report_seconds, 3 * head.heartbeat_seconds)
    return head.unchanged_seconds >= limit


def is_training(state: Snapshot) -> bool:
    """True if the last report of the current driver says that its workers train."""
    driver, progress = state.status.driver, state.status.progress
    if state.status.phase is not JobPhase.RUNNING or driver is None or progress is None:
        return False
    # Without a report of its own the progress is that of an earlier driver.
    return driver.sequence is not None and progress.phase in TRAINING_PHASES


def is_progress_stale(state: Snapshot) -> bool:
    """True if the last report of a running job is old; a single late answer does not count."""
    progress = state.status.progress
    if state.status.phase is not JobPhase.RUNNING or progress is None:
        return False
    return state.seconds_since(progress.last_report_time) >= state.settings.unreachable_seconds


def is_driver_gone(state: Snapshot) -> bool:
    """True if no driver of the job can be running."""
    driver = state.status.driver
    return driver is None or driver.has_ended or state.status.cluster is None


def is_driver_stopping(state: Snapshot) -> bool:
    """True if a stop was requested and the driver has not ended."""
    driver = state.status.driver
    return has_cluster(state) and (
        driver is not None and not driver.has_ended and driver.stop_time is not None
    )


def is_stop_overdue(state: Snapshot) -> bool:
    """True if the driver has not ended in time after the request to stop."""
    driver = state.status.driver
    if driver is None or driver.stop_time is None:
        return False
    return state.seconds_since(driver.stop_time) >= state.settings.stop_seconds


def is_cluster_exhausted(state: Snapshot) -> bool:
    """True if enough restarts on this cluster have brought no new checkpoint."""
    driver = state.status.driver
    if driver is None:
        return False
    tries = min(state.status.restarts.since_checkpoint, driver.restart)
    return tries > 0 and (tries + 1) % state.settings.restarts_on_a_cluster == 0


# Pods


def seconds_until_lost(state: Snapshot, pod: ObservedPod) -> float:
    """Return the seconds until a terminating pod counts as lost; infinity for any other pod."""
    if pod.deletion_time is None:
        return float("inf")
    return state.settings.lost_pod_seconds - (state.now - pod.deletion_time).total_seconds()


def lost_pods(state: Snapshot, pods: Iterable[ObservedPod]) -> tuple[ObservedPod, ...]:
    """Return the pods on lost nodes: their grace period is long over."""
    return tuple(pod for pod in pods if seconds_until_lost(state, pod) <= 0)


def remaining_pods(state: Snapshot, pods: Iterable[ObservedPod]) -> tuple[ObservedPod, ...]:
    """Return the pods that are not lost."""
    return tuple(pod for pod in pods if seconds_until_lost(state, pod) > 0)
