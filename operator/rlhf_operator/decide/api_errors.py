"""Requests that Kubernetes refuses, reported by the condition that they concern. Pure."""

from __future__ import annotations

from datetime import datetime

from rlhf_api.status import ConditionStatus, ConditionType, JobPhase, RLHFJobStatus
from rlhf_kube.errors import Forbidden, Invalid, KubeError, NotAdmitted, Refused, Unreachable
from rlhf_operator.decide.actions import Action, DeleteCluster, DeletePod, RemoveFinalizer
from rlhf_operator.decide.decision import Draft
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
        case Forbidden() | NotAdmitted():
            reason = FORBIDDEN
        case Refused():
            reason = INVALID
        case Unreachable():
            reason = "KubernetesUnreachable"
        case _:  # the object, or its namespace, has changed or is gone since it was read
            reason = "KubernetesConflict"
    return reason


def record_refused_action(
    observed: Observed,
    action: Action,
    error: KubeError,
    settings: Settings,
    now: datetime,
) -> RLHFJobStatus:
    """Return the status that reports a refused action: a quota, a policy, a role, a missing kind.

    A refused deletion sets Stalled: the job cannot proceed without a change. Any other refusal
    makes ClusterReady false.

    Args:
        observed: with the status that was decided on.
        error: the refusal.
    """
    reason = operator_reason(error)
    draft = Draft(observed, settings, now)
    match action:
        case DeleteCluster(name):
            _stall(draft, reason, f"delete the RayCluster {name}: {error}")
        case DeletePod(name):
            _stall(draft, reason, f"delete the pod {name}: {error}")
        case RemoveFinalizer():
            _stall(draft, reason, f"remove the finalizer from the job: {error}")
        case _:
            message = f"Kubernetes refuses an object of the job: {error}"
            draft.set_condition(ConditionType.CLUSTER_READY, ConditionStatus.FALSE, reason, message)
    return draft.status


def refresh_stalled(draft: Draft) -> None:
    """Keep the condition Stalled of a refused action while the action is still requested."""
    # Last in a decision. Without it the status would change between two reconciles: removed by the
    # decision, and set again when the action is refused again.
    before = find_condition(draft.observed.job.status, ConditionType.STALLED)
    if before is None or before.reason not in (FORBIDDEN, INVALID):
        return
    if any(
        isinstance(action, (DeleteCluster, DeletePod, RemoveFinalizer)) for action in draft.actions
    ):
        draft.set_condition(
            ConditionType.STALLED, ConditionStatus.TRUE, before.reason, before.message
        )
    elif draft.snapshot.condition(ConditionType.STALLED) == before:
        _clear_stalled(draft)


def _clear_stalled(draft: Draft) -> None:
    status = draft.status
    if status.phase is JobPhase.FAILED and status.reason is not None:
        # A failed job is stalled by its failure.
        draft.set_condition(
            ConditionType.STALLED, ConditionStatus.TRUE, status.reason, status.message
        )
    else:
        draft.remove_condition(ConditionType.STALLED)


def _stall(draft: Draft, reason: str, request: str) -> None:
    message = f"Kubernetes refuses to {request}"
    draft.set_condition(ConditionType.STALLED, ConditionStatus.TRUE, reason, message)
