"""Reader of statuses of any release, as the API server returns them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from rlhf_api.problems import FieldPath
from rlhf_api.status import RLHFJobStatus


def read_status(raw: Any) -> RLHFJobStatus:
    """Read a status that an operator of any version wrote.

    Unlisted values of enumerations are kept; everything else that this version cannot read is
    dropped.
    """
    document = _copied(raw) if isinstance(raw, Mapping) else {}
    is_smaller = True
    # Repeat: pydantic reports errors of inner values only after outer ones are valid.
    while is_smaller:
        try:
            return RLHFJobStatus.model_validate(document)
        except ValidationError as error:
            faults = error.errors(include_url=False, include_context=False, include_input=False)
        locations = {
            fault["loc"][:-1] if fault["type"] == "missing" else fault["loc"] for fault in faults
        }
        # Last first: a deletion moves the later items of a list.
        last_first = sorted(locations, key=_order, reverse=True)
        is_smaller = any([_drop(document, location) for location in last_first])
    # Nothing could be dropped: begin with an empty status.
    return RLHFJobStatus()


def _order(location: FieldPath) -> list[str]:
    # Padded: indices of lists then sort by number, as text.
    return [str(part).zfill(20) for part in location]


def _copied(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _copied(member) for name, member in value.items()}
    return [_copied(item) for item in value] if isinstance(value, list) else value


def _drop(document: Any, location: FieldPath) -> bool:
    """Delete the value at a location, or else the innermost deletable value around it.

    Returns:
        True if something was deleted.
    """
    parents = [document]
    try:
        for part in location[:-1]:
            parents.append(parents[-1][part])
    except (KeyError, IndexError, TypeError):
        pass  # pydantic's locations may end with a part that the document lacks, such as [key]
    # From the inside out. A required field takes its object with it in the next round.
    for parent, part in reversed(list(zip(parents, location, strict=False))):
        try:
            del parent[part]
            return True
        except (KeyError, IndexError, TypeError):
            continue
    return False
