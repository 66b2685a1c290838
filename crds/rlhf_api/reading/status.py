"""From a status, as the API server gives it, to the model: whatever release wrote it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from rlhf_api.problems import FieldPath
from rlhf_api.status import RLHFJobStatus


def read_status(raw: Any) -> RLHFJobStatus:
    """Read what an operator wrote, perhaps one of another version: words that enumerations do not
    list are kept, and what this version does not understand is left out."""
    document = _copied(raw) if isinstance(raw, Mapping) else {}
    is_smaller = True
    while is_smaller:  # what is wrong deep inside shows when the outer things are right
        try:
            return RLHFJobStatus.model_validate(document)
        except ValidationError as error:
            faults = error.errors(include_url=False, include_context=False, include_input=False)
        places = {each["loc"][:-1] if each["type"] == "missing" else each["loc"] for each in faults}
        last_first = sorted(places, key=_order, reverse=True)  # else items of lists would move
        is_smaller = any([_drop(document, place) for place in last_first])
    return RLHFJobStatus()


def _order(place: FieldPath) -> list[str]:
    return [str(part).zfill(20) for part in place]


def _copied(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _copied(each) for name, each in value.items()}
    return [_copied(each) for each in value] if isinstance(value, list) else value


def _drop(document: Any, place: FieldPath) -> bool:
    """Take out what lies there, or the innermost thing around it that can be taken out."""
    around = [document]
    try:
        for part in place[:-1]:
            around.append(around[-1][part])
    except (KeyError, IndexError, TypeError):
        pass  # a place that only the validator knows, such as a key of a map
    for holder, part in reversed(list(zip(around, place, strict=False))):
        try:
            del holder[part]
            return True
        except (KeyError, IndexError, TypeError):
            continue
    return False
