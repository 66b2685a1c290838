"""StatusReport: what it refuses, and which of two reports is news."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from rlhf_api.exits import ExitCode
from rlhf_api.report import StatusReport


def report(**changes: Any) -> StatusReport:
    fields: dict[str, Any] = {
        "job": "sort",
        "submission_id": "sort-1-1",
        "sequence": 4,
        "phase": "Train",
        "step": 3,
        "total_steps": 10,
    }
    return StatusReport(**(fields | changes))


def test_a_report_survives_the_wire() -> None:
    original = report(metrics={"reward/mean": 0.5}, final=True, exit_code=ExitCode.RETRIABLE)
    assert StatusReport.model_validate_json(original.model_dump_json(by_alias=True)) == original


def test_percent_rounds_down() -> None:
    assert report(step=0).percent == 0
    assert report(step=2, total_steps=3).percent == 66
    assert report(step=0, total_steps=0).percent == 0


@pytest.mark.parametrize("changes", [{"final": True}, {"exit_code": 0}])
def test_the_end_and_its_exit_code_come_together(changes: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="if and only if"):
        report(**changes)


def test_metrics_are_finite_numbers() -> None:
    with pytest.raises(ValidationError, match="finite"):
        report(metrics={"reward": float("nan")})
