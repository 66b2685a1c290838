"""StatusReport: what it refuses, and which of two reports is news."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import ValidationError

from rlhf_api.exits import ExitCode
from rlhf_api.reading.report import read_report
from rlhf_api.report import SavingReport, StatusReport


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


def test_fields_of_a_later_release_are_ignored_and_everything_else_is_checked() -> None:
    original = report(saving=SavingReport(failures=2, reason="NoSpace", message="full"))
    document = original.model_dump(mode="json", by_alias=True)
    document |= {"mood": "good", "colours": [1]}
    document["saving"]["sinceHour"] = 3
    assert read_report(json.dumps(document)) == original
    with pytest.raises(ValidationError, match="step"):
        read_report(json.dumps(document | {"step": -1}))
    for text in ("", "[]", "{}", '{"mood": "good"}'):
        with pytest.raises(ValidationError):
            read_report(text)


def test_a_report_of_an_earlier_release_says_nothing_about_saving() -> None:
    document = report().model_dump(mode="json", by_alias=True, exclude_none=True)
    assert "saving" not in document and read_report(json.dumps(document)).saving is None
