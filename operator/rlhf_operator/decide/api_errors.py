"""Requests that Kubernetes refuses, reported by the condition that they concern. Pure."""

from __future__ import annotations

from datetime import datetime

from rlhf_api.status import ConditionStatus, ConditionType, JobPhase
from rlhf_kube.errors import (
    Forbidden,
    Invalid,
    KubeError,
    NotAdmitted,
    Refused,
    UnknownField,
    Unreachable,
)
from rlhf_operator.decide.actions import (
    Action,
    CreateCluster,
    DeleteCluster,
    DeletePod,
    ReleaseWorkers,
)
from rlhf_operator.decide.decision import Decision, Draft
from rlhf_operator.decide.observed import Observed
from rlhf_operator.decide.predicates import find_condition
from rlhf_operator.decide.settings import Settings

FORBIDDEN = "KubernetesForbidden"
INVALID = "KubernetesInvalid"


class KubeRayTooOld(Invalid):
    """The kind RayCluster lacks a field that the operator relies on."""

    reason = "KubeRayTooOld"


def operator_reason(error: KubeError) -> str:
    """Return an error's reason in conditions, metrics and logs of the operator."""
    # Not that of the command: in the status of a job a cluster is its RayCluster.
    match error:
        case KubeRayTooOld():
            reason = error.reason
        case UnknownField():
            reason = "DefinitionDiffers"
        case Forbidden() | NotAdmitted():
            reason = FORBIDDEN
        case Refused():
            reason = INVALID
        case Unreachable():
            reason = "KubernetesUnreachable"
        case _:  # the object, or its namespace, has changed or is gone since it was read
            reason = "KubernetesConflict"
    return reason


def is_quota_used_up(message: str) -> bool:
    """True if an object is refused by a quota, which may become free without anybody's help."""
    return "exceeded quota" in message


def record_refused_action(
    observed: Observed,
    action: Action,
    error: KubeError,
    settings: Settings,
    now: datetime,
) -> Decision:
    """Return the decision that reports a refused action: a quota, a policy, a role, a missing kind.

    A refused deletion sets Stalled: the job cannot proceed without a change. Any other refusal
    makes ClusterReady false and is the reason of the phase, which is stalled unless a quota is
    used up.

    Args:
        observed: with the status that was decided on.
        error: the refusal.
    """
    reason = operator_reason(error)
    draft = Draft(observed, settings, now)
    match action:
        case DeleteCluster(name):
            _stall(draft, reason, f"delete the RayCluster {name}: {error}")
        case ReleaseWorkers(name):
            _stall(draft, reason, f"release the workers of the RayCluster {name}: {error}")
        case DeletePod(name):
            _stall(draft, reason, f"delete the pod {name}: {error}")
        case _:
            message = f"Kubernetes refuses an object of the job: {error}"
            draft.set_condition(ConditionType.CLUSTER_READY, ConditionStatus.FALSE, reason, message)
            draft.set_phase(
                draft.status.phase,
                reason,
                message,
                is_warning=True,
                is_stuck=not is_quota_used_up(message),
            )
    return draft.decision()


def refresh_stalled(draft: Draft) -> None:
    """Keep the condition Stalled of a refused action while the action is still requested."""
    # Last in a decision. Without it the status would change between two reconciles: removed by the
    # decision, and set again when the action is refused again.
    before = find_condition(draft.observed.job.status, ConditionType.STALLED)
    if before is None or before.reason not in (FORBIDDEN, INVALID, KubeRayTooOld.reason):
        return
    if any(
        isinstance(action, (DeleteCluster, DeletePod, ReleaseWorkers)) for action in draft.actions
    ):
        _set_stalled(draft, before.reason, before.message)
    elif draft.snapshot.condition(ConditionType.STALLED) == before and not any(
        isinstance(action, CreateCluster) for action in draft.actions
    ):
        _clear_stalled(draft)


def _clear_stalled(draft: Draft) -> None:
    status = draft.status
    if status.reason is None:
        draft.remove_condition(ConditionType.STALLED)
    else:
        # A failed job is stalled by its failure.
        is_stuck = status.phase is JobPhase.FAILED
        draft.set_phase(status.phase, status.reason, status.message, is_stuck=is_stuck)


def _stall(draft: Draft, reason: str, request: str) -> None:
    message = f"Kubernetes refuses to {request}"
    before = draft.snapshot.condition(ConditionType.STALLED)
    if before is None or before.reason != reason:
        draft.record_event(reason, message, is_warning=True)
    _set_stalled(draft, reason, message)


def _set_stalled(draft: Draft, reason: str, message: str) -> None:
    draft.set_condition(ConditionType.STALLED, ConditionStatus.TRUE, reason, message)
    # Programs that wait for conditions take a job with both for one that proceeds.
    draft.remove_condition(ConditionType.RECONCILING)
