"""From a document, as YAML or JSON gave it, to an RLHFJob or to everything that is wrong with it.

Types are strict, as the Kubernetes API server's are: "5" is no number and 5 is no text. Keys are
wire names only. Lines are not known here; see `manifest`.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from rlhf_api.problems import FieldPath, Problem
from rlhf_api.reading.model_errors import convert_error, format_value
from rlhf_api.rules import BrokenRules
from rlhf_api.spec.job import API_VERSION, GROUP, KIND, RLHFJob


def validate_document(document: Any) -> tuple[RLHFJob | None, list[Problem]]:
    """Check one document. Returns the job and no problems, or no job and every problem."""
    foreign = _foreign(document)
    if foreign is not None:
        return None, [foreign]
    try:
        text = json.dumps(document)
        return RLHFJob.model_validate_json(text, strict=True, by_alias=True, by_name=False), []
    except ValidationError as error:
        details = error.errors(include_url=False)
    return None, _problems(document, details)


def _foreign(document: Any) -> Problem | None:
    """The one problem of a document that is no RLHFJob of this version at all."""
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
    """Turn pydantic's errors into problems, one for each place and fault."""
    found: dict[tuple[FieldPath, str], Problem] = {}
    for error in details:
        raised = error.get("ctx", {}).get("error")
        if isinstance(raised, BrokenRules):
            at = error["loc"]
            problems = [replace(each, location=(*at, *each.location)) for each in raised.problems]
        elif error["type"] == "too_short" and _is_long_enough(error):
            continue
        else:
            problems = [convert_error(document, error)]
        for problem in problems:
            found.setdefault((problem.location, problem.what), problem)
    return list(found.values())


def _is_long_enough(error: ErrorDetails) -> bool:
    """Whether a list is only short because its invalid entries, reported apart, do not count."""
    return len(error["input"]) >= int(error["ctx"]["min_length"])
