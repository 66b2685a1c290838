"""What Kubernetes refuses to do, told by the condition that it is about. Pure."""

from __future__ import annotations

from datetime import datetime

from rlhf_api.status import Condition, ConditionStatus, ConditionType, JobPhase, RLHFJobStatus
from rlhf_operator.clients.kube.protocol import Forbidden, Invalid
from rlhf_operator.decide.actions import Action, DeleteCluster, DeletePod, ReleaseJob
from rlhf_operator.decide.draft import Draft
from rlhf_operator.decide.observed import Observed
from rlhf_operator.decide.settings import Settings

REASONS = (Forbidden.reason, Invalid.reason)


def with_trouble(
    seen: Observed, action: Action, reason: str, said: str, settings: Settings, now: datetime
) -> RLHFJobStatus:
    """The status that says why an action was refused: a quota, a policy, a role, a missing kind.

    What a cluster needs is missing from its readiness. What cannot be taken away says nothing about
    that: the job cannot go on without a change.

    Args:
        seen: with the status that was decided on.
        reason: of the refusal.
        said: Kubernetes' own words.
    """
    draft = Draft(seen, settings, now)
    match action:
        case DeleteCluster(name):
            _stall(draft, reason, f"delete the RayCluster {name}: {said}")
        case DeletePod(name):
            _stall(draft, reason, f"delete the pod {name}: {said}")
        case ReleaseJob():
            _stall(draft, reason, f"take the finalizer off the job: {said}")
        case _:
            message = f"Kubernetes refuses what the job needs: {said}"
            draft.conclude(ConditionType.CLUSTER_READY, ConditionStatus.FALSE, reason, message)
    return draft.status


def follow_trouble(draft: Draft) -> None:
    """Last in a decision: what was refused is told as long as it is still asked for, so that the
    status does not change from look to look."""
    told = _stalled(draft.seen.job.status)
    if told is None or told.reason not in REASONS:
        return
    if any(isinstance(each, (DeleteCluster, DeletePod, ReleaseJob)) for each in draft.actions):
        draft.conclude(ConditionType.STALLED, ConditionStatus.TRUE, told.reason, told.message)
    elif _stalled(draft.status) == told:
        _recover(draft)


def _recover(draft: Draft) -> None:
    """It came about: what stalls a job that has failed is its failure again."""
    status = draft.status
    if status.phase is JobPhase.FAILED and status.reason is not None:
        draft.conclude(ConditionType.STALLED, ConditionStatus.TRUE, status.reason, status.message)
    else:
        draft.drop(ConditionType.STALLED)


def _stall(draft: Draft, reason: str, what: str) -> None:
    message = f"Kubernetes refuses to {what}"
    draft.conclude(ConditionType.STALLED, ConditionStatus.TRUE, reason, message)


def _stalled(status: RLHFJobStatus) -> Condition | None:
    return next((each for each in status.conditions if each.type is ConditionType.STALLED), None)
