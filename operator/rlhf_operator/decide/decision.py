"""A decision in the making: the next status, the actions, and the time of the next reconcile."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from rlhf_api.spec.resources import Device
from rlhf_api.status import (
    Condition,
    ConditionStatus,
    ConditionType,
    JobPhase,
    RLHFJobStatus,
)
from rlhf_operator.decide.actions import Action, JobEvent
from rlhf_operator.decide.node_pools import cluster_pools
from rlhf_operator.decide.observed import Observed, ObservedPod
from rlhf_operator.decide.predicates import (
    FINAL_PHASES,
    Snapshot,
    find_condition,
    is_training,
    seconds_until_lost,
)
from rlhf_operator.decide.settings import Settings

MAX_MESSAGE_CHARACTERS = 1024
"""Limit of a message; text from outside can be of any length."""
MAX_SECONDS = 2**31 - 1
"""Upper bound of the seconds in a phase."""
ACTIVE_PHASES = (JobPhase.PLANNING, JobPhase.PROVISIONING, JobPhase.RUNNING, JobPhase.RESTARTING)
"""Phases of a job that proceeds without anybody's help."""


@dataclass(frozen=True)
class Decision:
    """The outcome of a reconcile. The status is written first, then the actions run in order."""

    status: RLHFJobStatus
    actions: tuple[Action, ...]
    events: tuple[JobEvent, ...]
    restarts: tuple[Restart, ...]
    """Restarts that it causes or has observed, for the metrics."""
    requeue_after: float | None
    """Seconds until the next reconcile. None: only an event leads to one."""


@dataclass(frozen=True)
class Restart:
    """Some restarts of one kind."""

    kind: Literal["incarnations", "drivers", "clusters"]
    reason: str
    number: int = 1


class Draft:
    """Collects a decision. Predicates read its `snapshot`; only transitions get the draft."""

    def __init__(self, observed: Observed, settings: Settings, now: datetime) -> None:
        self.observed = observed
        self.settings = settings
        # The status has whole seconds: a finer time would differ from the one read back.
        self.now = now.astimezone(UTC).replace(microsecond=0)
        self.status: RLHFJobStatus = observed.job.status
        self.actions: list[Action] = []
        self._events: list[JobEvent] = []
        self._restarts: list[Restart] = []
        self._requeue_after: float | None = None

    @property
    def snapshot(self) -> Snapshot:
        """The current state, for predicates."""
        return Snapshot(self.observed, self.status, self.settings, self.now)

    def set(self, **fields: Any) -> None:
        """Change fields of the status."""
        self.status = self.status.model_copy(update=fields)

    def do(self, *actions: Action) -> None:
        """Request actions."""
        self.actions += actions

    def record_event(self, reason: str, message: str, is_warning: bool = False) -> None:
        """Add a Kubernetes Event."""
        self._events.append(JobEvent(reason, _shorten(message), is_warning))

    def count_restart(self, restart: Restart) -> None:
        """Add to the metrics."""
        self._restarts.append(restart)

    def requeue_after(self, seconds: float) -> None:
        """Reconcile again after this time at the latest."""
        seconds = max(0.0, seconds)
        last = self._requeue_after
        self._requeue_after = seconds if last is None else min(last, seconds)

    def requeue_when_lost(self, pods: Iterable[ObservedPod]) -> None:
        """Reconcile again when the first terminating pod counts as lost."""
        for pod in pods:
            left = seconds_until_lost(self.snapshot, pod)
            if 0 < left < float("inf"):
                self.requeue_after(left)

    def set_condition(
        self, type: ConditionType, status: ConditionStatus, reason: str, message: str
    ) -> None:
        """Set a condition; its transition time changes only with its status."""
        # Compared with the written status, as a decision may remove a condition and set it again.
        before = find_condition(self.observed.job.status, type)
        is_same = before is not None and before.status is status
        condition = Condition(
            type=type,
            status=status,
            observed_generation=self.observed.job.generation,
            last_transition_time=before.last_transition_time if before and is_same else self.now,
            reason=reason,
            message=_shorten(message),
        )
        # In a fixed order, so that equal conditions are equal lists and cause no write.
        others = [other for other in self.status.conditions if other.type is not type]
        order = list(ConditionType)
        self.set(conditions=tuple(sorted([*others, condition], key=lambda c: order.index(c.type))))

    def remove_condition(self, *types: ConditionType) -> None:
        """Remove conditions that exist only while they are true."""
        kept = tuple(entry for entry in self.status.conditions if entry.type not in types)
        self.set(conditions=kept)

    def set_phase(
        self,
        phase: JobPhase | str,
        reason: str,
        message: str,
        is_warning: bool = False,
        is_stuck: bool = False,
        is_recorded: bool = False,
    ) -> None:
        """Set the phase and the conditions that follow from it; an event if phase or reason change.

        Args:
            is_stuck: True if the job cannot proceed without a change by somebody.
            is_recorded: True if the caller has recorded an event of this reason, now or earlier.
        """
        is_new = (self.status.phase, self.status.reason) != (phase, reason)
        self.set(phase=phase, reason=reason, message=_shorten(message))
        if is_new and not is_recorded:
            self.record_event(reason, message, is_warning)
        for type, status in phase_conditions(phase, is_stuck).items():
            if status is None:
                self.remove_condition(type)
            else:
                self.set_condition(type, status, reason, message)

    def decision(self) -> Decision:
        """Return the collected decision."""
        gpus = self._count_gpus()
        busy = gpus if is_training(self.snapshot) else 0
        self.set(observed_generation=self.observed.job.generation, gpus=gpus, busy_gpus=busy)
        self._add_phase_seconds()
        # A change of GPU time alone is no reason to write: it changes with every reconcile.
        if self.status != self.observed.job.status:
            self._add_gpu_seconds()
        # `model_copy` does not validate: check the limits of the contract here.
        status = RLHFJobStatus.model_validate(self.status.model_dump())
        return Decision(
            status,
            tuple(self.actions),
            tuple(self._events),
            tuple(self._restarts),
            self._requeue_after,
        )

    def _count_gpus(self) -> int:
        """Return the GPUs that the pods of its cluster occupy."""
        name = self.status.cluster.name if self.status.cluster else ""
        cluster, job = self.observed.cluster(name), self.observed.job.cluster_job
        if cluster is None or not cluster.is_owned:
            return 0
        if job is None:  # its manifest is not readable any more; the cluster stays as it is
            return self.status.gpus
        pools = {pool.name: pool for pool in cluster_pools(job) if pool.device is Device.GPU}
        bound = [pod for pod in self.observed.cluster_pods(name) if pod.is_bound]
        return sum(pools[pod.pool].devices_per_node for pod in bound if pod.pool in pools)

    def _add_phase_seconds(self) -> None:
        """Count the time in the phase that the job leaves, if it leaves one."""
        before = self.observed.job.status
        if before.phase == self.status.phase and before.phase_time is not None:
            return
        if before.phase in FINAL_PHASES:  # an earlier release ended it: it is never written again
            return
        # The first decision about a job ends a phase that began with its creation.
        is_first = before.observed_generation == -1
        begin = self.observed.job.created if is_first else before.phase_time
        seconds = before.phase_seconds.get(before.phase, 0) + self.snapshot.seconds_since(begin)
        if before.phase == self.status.phase:
            self.set(phase_time=begin or self.now)
            return
        total = {str(before.phase): min(int(seconds), MAX_SECONDS)}
        self.set(phase_time=self.now, phase_seconds={**before.phase_seconds, **total})

    def _add_gpu_seconds(self) -> None:
        # What the GPUs did since the last write is what the status says of then.
        before = self.observed.job.status
        seconds = self.snapshot.seconds_since(before.gpus_accounted_time)
        idle = seconds * (before.gpus - before.busy_gpus)
        self.set(
            gpu_seconds=before.gpu_seconds + int(seconds * before.gpus),
            idle_gpu_seconds=before.idle_gpu_seconds + int(idle),
            gpus_accounted_time=self.now if self.status.gpus else None,
        )


def phase_conditions(
    phase: JobPhase | str, is_stuck: bool
) -> Mapping[ConditionType, ConditionStatus | None]:
    """Return the conditions that say the same as the phase, for programs that wait for conditions.

    Accepted, Planned and ClusterReady do not follow from the phase.

    Args:
        is_stuck: True if the job cannot proceed without a change by somebody.

    Returns:
        The status of each condition; None: the condition is absent.
    """

    def true_if(holds: bool) -> ConditionStatus | None:
        return ConditionStatus.TRUE if holds else None

    succeeded = phase is JobPhase.SUCCEEDED
    return {
        ConditionType.READY: ConditionStatus.TRUE if succeeded else ConditionStatus.FALSE,
        ConditionType.RECONCILING: true_if(phase in ACTIVE_PHASES and not is_stuck),
        ConditionType.STALLED: true_if(is_stuck),
        ConditionType.SUSPENDED: true_if(phase is JobPhase.SUSPENDED),
        ConditionType.COMPLETE: true_if(succeeded),
        ConditionType.FAILED: true_if(phase is JobPhase.FAILED),
    }


def _shorten(text: str) -> str:
    if len(text) <= MAX_MESSAGE_CHARACTERS:
        return text
    return f"{text[: MAX_MESSAGE_CHARACTERS - 4]} ..."
