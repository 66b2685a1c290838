"""Argo CD's health check of RLHFJob, in the Lua that Argo CD runs (5.1)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from lupa.lua51 import LuaRuntime

from rlhf_api.status import ConditionType, RLHFJobStatus

SCRIPT = Path(__file__).parents[2] / "docs" / "kubernetes" / "argocd-health.lua"
TIME = "2026-01-01T00:00:00Z"


def condition(type: ConditionType, status: str = "True") -> dict[str, Any]:
    message = f"{type} is {status}"
    return {
        "type": type.value,
        "status": status,
        "reason": "R",
        "message": message,
        "lastTransitionTime": TIME,
    }


def health(status: dict[str, Any] | None, generation: int = 3) -> tuple[str, str]:
    """What the check says of a job with this status."""
    if status is not None:
        RLHFJobStatus.model_validate(status)
    lua = LuaRuntime()
    job: dict[str, Any] = {"metadata": {"generation": generation}}
    if status is not None:
        job["status"] = status
    lua.globals()["obj"] = lua.table_from(job, recursive=True)
    said = lua.execute(SCRIPT.read_text())
    return said["status"], said["message"]


@pytest.mark.parametrize(
    ("conditions", "expected"),
    [
        ([condition(ConditionType.RECONCILING)], "Progressing"),
        ([condition(ConditionType.READY, "False")], "Progressing"),
        ([condition(ConditionType.READY), condition(ConditionType.COMPLETE)], "Healthy"),
        ([condition(ConditionType.COMPLETE, "False")], "Progressing"),
        ([condition(ConditionType.SUSPENDED)], "Suspended"),
        (
            [condition(ConditionType.SUSPENDED, "False"), condition(ConditionType.COMPLETE)],
            "Healthy",
        ),
        (
            [condition(ConditionType.FAILED), condition(ConditionType.COMPLETE, "False")],
            "Degraded",
        ),
        (
            [condition(ConditionType.ACCEPTED, "False"), condition(ConditionType.STALLED)],
            "Degraded",
        ),
        (
            [condition(ConditionType.STALLED), condition(ConditionType.SUSPENDED)],
            "Degraded",
        ),
    ],
)
def test_health_follows_conditions(conditions: list[dict[str, Any]], expected: str) -> None:
    status = {"observedGeneration": 3, "message": "step 1 of 2", "conditions": conditions}
    said, message = health(status)
    assert said == expected
    decisive = [f"{each['type']} is True" for each in conditions]
    assert message in ([*decisive, "step 1 of 2"] if said != "Progressing" else ["step 1 of 2"])


def test_what_the_operator_has_not_looked_at_is_progressing() -> None:
    done = [condition(ConditionType.COMPLETE)]
    for status in (None, {"observedGeneration": -1}, {"observedGeneration": 2, "conditions": done}):
        assert health(status)[0] == "Progressing"
