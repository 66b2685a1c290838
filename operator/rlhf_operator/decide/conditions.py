"""The conditions that say the same as the phase, in the form that other programs wait for. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from rlhf_api.status import ConditionStatus, ConditionType, JobPhase

ON_ITS_WAY = (JobPhase.PLANNING, JobPhase.PROVISIONING, JobPhase.RUNNING, JobPhase.RESTARTING)
"""Phases of a job that goes on without anybody's help."""


def conditions_of(
    phase: JobPhase, is_stuck: bool
) -> Mapping[ConditionType, ConditionStatus | None]:
    """What each of them is in a phase; None: it is not there.

    The others (Accepted, Planned, ClusterReady) are about something else than the phase.

    Args:
        is_stuck: whether the job cannot go on without a change.
    """

    def only(holds: bool) -> ConditionStatus | None:
        return ConditionStatus.TRUE if holds else None

    succeeded = phase is JobPhase.SUCCEEDED
    return {
        ConditionType.READY: ConditionStatus.TRUE if succeeded else ConditionStatus.FALSE,
        ConditionType.RECONCILING: only(phase in ON_ITS_WAY),
        ConditionType.STALLED: only(is_stuck),
        ConditionType.SUSPENDED: only(phase is JobPhase.SUSPENDED),
        ConditionType.COMPLETE: only(succeeded),
        ConditionType.FAILED: only(phase is JobPhase.FAILED),
    }
