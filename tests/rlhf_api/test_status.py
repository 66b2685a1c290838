"""The status: a fresh job's, how times are written, what is refused, and that the CRD takes it."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from pydantic import ValidationError

from rlhf_api.status import (
    ArtifactStatus,
    CheckpointStatus,
    ClusterStatus,
    Condition,
    ConditionStatus,
    ConditionType,
    DriverStatus,
    JobPhase,
    PlanStatus,
    ProgressStatus,
    RestartStatus,
    RLHFJobStatus,
)

from .admission import admit
from .rule_cases import GOOD

NOON = datetime(2026, 1, 1, 14, 0, 0, 900_000, tzinfo=timezone(timedelta(hours=2)))


def condition(**changes: Any) -> Condition:
    fields: dict[str, Any] = {
        "type": ConditionType.READY,
        "status": ConditionStatus.FALSE,
        "last_transition_time": NOON,
        "reason": "Training",
        "message": "step 120 of 500",
    }
    return Condition(**(fields | changes))


def running() -> RLHFJobStatus:
    """The status of a job in the middle of its steps, with everything set."""
    return RLHFJobStatus(
        observed_generation=3,
        phase=JobPhase.RUNNING,
        reason="Training",
        message="step 120 of 500",
        conditions=tuple(condition(type=kind, observed_generation=3) for kind in ConditionType),
        start_time=NOON,
        completion_time=NOON,
        gpus=32,
        busy_gpus=32,
        gpu_seconds=48211,
        idle_gpu_seconds=1200,
        phase_time=NOON,
        phase_seconds={"Provisioning": 90},
        plan=PlanStatus(placement="Colocated", peak_memory_bytes=61 * 2**30, summary="all on all"),
        progress=ProgressStatus(
            phase="Train",
            step=120,
            total_steps=500,
            percent=24,
            seconds_remaining=15732,
            tokens_per_second=51200,
            reward="0.71",
            metrics={"reward/mean": "0.71", "kl": "1e-06"},
            last_report_time=NOON,
        ),
        checkpoint=CheckpointStatus(step=100, path="/checkpoints/job/step-100", time=NOON),
        checkpoint_failures=3,
        restarts=RestartStatus(
            drivers=1,
            total=1,
            since_checkpoint=1,
            next_time=NOON,
            by_reason={"NodeLost": 1},
        ),
        cluster=ClusterStatus(name="job-x7k2p", attempt=1, head_pod_uid="0a-1b", admitted=True),
        driver=DriverStatus(submission_id="job-1-1", attempt=1, restart=1, sequence=7, exit_code=4),
        artifacts=ArtifactStatus(checkpoints="/c", model="/c/model", report="/c/report.html"),
    )


def test_a_fresh_job_was_looked_at_by_nobody_and_is_pending() -> None:
    status = RLHFJobStatus()
    assert (status.observed_generation, status.phase) == (-1, JobPhase.PENDING)


def test_times_are_written_in_utc_to_the_second() -> None:
    written = condition().model_dump(mode="json", by_alias=True)
    assert written["lastTransitionTime"] == "2026-01-01T12:00:00Z"


def test_a_time_without_zone_is_refused() -> None:
    with pytest.raises(ValidationError, match="timezone"):
        condition(last_transition_time=datetime(2026, 1, 1))


def test_a_status_survives_the_wire() -> None:
    text = running().model_dump_json(by_alias=True, exclude_none=True)
    assert RLHFJobStatus.model_validate_json(text) == running()


def test_the_crd_takes_every_field_of_it() -> None:
    status = running().model_dump(mode="json", by_alias=True, exclude_none=True)
    admission = admit(GOOD | {"status": status})
    assert (admission.dropped, admission.invalid, admission.broken) == ([], [], [])
    assert admission.document["status"] == status


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"reason": "not a word"}, "pattern"),
        ({"reason": ""}, "at least 1"),
        ({"type": ""}, "at least 1"),
        ({"status": "M" * 64}, "at most 63"),
        ({"message": "x" * 32769}, "at most 32768"),
    ],
)
def test_a_condition_keeps_kubernetes_rules(change: dict[str, str], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        condition(**change)


@pytest.mark.parametrize("text", ["", "nan", "inf", "1,5", "0x1"])
def test_a_reward_is_a_finite_number_in_digits(text: str) -> None:
    progress = running().progress
    assert progress is not None
    with pytest.raises(ValidationError, match="pattern"):
        ProgressStatus(**(progress.model_dump() | {"reward": text}))


def test_two_conditions_of_a_type_are_refused_by_the_crd() -> None:
    status = {"conditions": [condition().model_dump(mode="json", by_alias=True)] * 2}
    assert admit(GOOD | {"status": status}).invalid == ["status.conditions: Ready twice"]
