"""Validation of a document from YAML or JSON: to an RLHFJob, or to all of its problems.

Types are strict, as the Kubernetes API server's are: "5" is no number and 5 is no text. Keys are
wire names only. `manifest` adds line numbers.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from rlhf_api.api_names import API_VERSION, GROUP, KIND
from rlhf_api.problems import FieldPath, Problem
from rlhf_api.reading.model_errors import convert_error, format_value
from rlhf_api.rules import BrokenRules
from rlhf_api.spec.job import RLHFJob


def validate_document(document: Any) -> tuple[RLHFJob | None, list[Problem]]:
    """Check one document.

    Returns:
        The job and no problems, or None and every problem.
    """
    foreign = _foreign(document)
    if foreign is not None:
        return None, [foreign]
    try:
        # By JSON, whose strict mode accepts lists for tuples and texts for enumerations.
        text = json.dumps(document)
        return RLHFJob.model_validate_json(text, strict=True, by_alias=True, by_name=False), []
    except ValidationError as error:
        details = error.errors(include_url=False)
    return None, _problems(document, details)


def _foreign(document: Any) -> Problem | None:
    """The problem of a document that is not an RLHFJob of this version; None if it is one."""
    if not isinstance(document, dict):
        return Problem(
            (), "not a manifest", got=format_value(document), allowed=f"a map, kind: {KIND}"
        )
    kind, version = document.get("kind"), document.get("apiVersion")
    if isinstance(kind, str) and kind != KIND:
        same = kind.lower() == KIND.lower()
        return Problem(
            ("kind",),
            "a document of another kind",
            got=format_value(kind),
            allowed=KIND,
            do="write it so" if same else "keep RLHFJobs in a file of their own",
        )
    if isinstance(version, str) and version != API_VERSION:
        ours = version.startswith(f"{GROUP}/")
        return Problem(
            ("apiVersion",),
            "another version of RLHFJob" if ours else "not the version of an RLHFJob",
            got=format_value(version),
            allowed=API_VERSION,
            do="write this version; `rlhf explain` lists its fields",
        )
    return None


def _problems(document: Any, details: list[ErrorDetails]) -> list[Problem]:
    """Convert pydantic's errors to problems, one for each location and fault."""
    unique: dict[tuple[FieldPath, str], Problem] = {}
    for error in details:
        raised = error.get("ctx", {}).get("error")
        if isinstance(raised, BrokenRules):
            root = error["loc"]
            problems = [
                replace(problem, location=(*root, *problem.location)) for problem in raised.problems
            ]
        elif error["type"] == "too_short" and _is_long_enough(error):
            continue  # the invalid entries have problems of their own
        else:
            problems = [convert_error(document, error)]
        for problem in problems:
            unique.setdefault((problem.location, problem.what), problem)
    return list(unique.values())


# True if a list is too short only because pydantic does not count its invalid entries.
def _is_long_enough(error: ErrorDetails) -> bool:
    return len(error["input"]) >= int(error["ctx"]["min_length"])
