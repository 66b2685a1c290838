"""Reader of reports of any release. Pure."""

from __future__ import annotations

import json
from typing import Any

from pydantic import ValidationError

from rlhf_api.problems import FieldPath
from rlhf_api.report import StatusReport


def read_report(text: str | bytes) -> StatusReport:
    """Read a report that a driver of any version wrote; fields that this version lacks are dropped.

    Raises:
        ValidationError: it is no report.
    """
    try:
        return StatusReport.model_validate_json(text)
    except ValidationError as error:
        faults = error.errors(include_url=False, include_context=False, include_input=False)
        unknown = [fault["loc"] for fault in faults if fault["type"] == "extra_forbidden"]
        if not unknown:
            raise
    document = json.loads(text)
    for location in unknown:
        _drop(document, location)
    return StatusReport.model_validate_json(json.dumps(document))


def _drop(document: Any, location: FieldPath) -> None:
    for part in location[:-1]:
        document = document[part]
    del document[location[-1]]
