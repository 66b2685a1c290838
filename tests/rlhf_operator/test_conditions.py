"""What programs wait for says the same as the phase that people read."""

from __future__ import annotations

import pytest

from rlhf_api.status import ConditionType, JobPhase
from rlhf_operator.decide.decision import phase_conditions


def true_in(phase: JobPhase, is_stuck: bool = False) -> set[str]:
    return {
        type.value
        for type, status in phase_conditions(phase, is_stuck).items()
        if status is not None and status.value == "True"
    }


@pytest.mark.parametrize(
    ("phase", "holds"),
    [
        (JobPhase.PENDING, set()),
        (JobPhase.PLANNING, {"Reconciling"}),
        (JobPhase.PROVISIONING, {"Reconciling"}),
        (JobPhase.RUNNING, {"Reconciling"}),
        (JobPhase.RESTARTING, {"Reconciling"}),
        (JobPhase.SUSPENDED, {"Suspended"}),
        (JobPhase.SUCCEEDED, {"Ready", "Complete"}),
        (JobPhase.FAILED, {"Failed"}),
    ],
)
def test_each_phase_has_its_conditions(phase: JobPhase, holds: set[str]) -> None:
    assert true_in(phase) == holds
    # kstatus: a stalled object is not being reconciled.
    assert true_in(phase, is_stuck=True) == holds - {"Reconciling"} | {"Stalled"}


@pytest.mark.parametrize("phase", JobPhase)
def test_ready_is_always_there_and_the_others_only_while_they_hold(phase: JobPhase) -> None:
    """As kstatus has it: who finds neither takes the job for done when Ready is true."""
    found = phase_conditions(phase, is_stuck=False)
    assert found[ConditionType.READY] is not None
    there = {type for type, status in found.items() if status is not None}
    assert {type.value for type in there} - {"Ready"} == true_in(phase) - {"Ready"}
