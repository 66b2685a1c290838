"""Overrides: `--set spec.schedule.steps=3` changes a document before it is checked."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Sequence
from typing import Any

from rlhf_api.error_collector import ErrorCollector
from rlhf_api.errors import OverrideError
from rlhf_api.problems import FieldPath, path_text
from rlhf_api.reading.yaml_documents import read_documents

_SEGMENT = re.compile(r"\.?([^.\[\]=]+)|\[([^\[\]]+)\]")


def apply_overrides(document: Any, overrides: Sequence[str]) -> Any:
    """Copy a document and apply each PATH=VALUE in order.

    A path names fields as messages do: spec.rewards[0].weight, metadata.labels[example.com/team]. A
    value is YAML: 3, 1e-6, true, "a text", [1, 2]. Missing maps on the path are created.

    Raises:
        OverrideError: a text is no PATH=VALUE, or its path leads through a value that is no map.
        SeveralErrors: several overrides fail.
    """
    # The caller also validates the original document.
    result = copy.deepcopy(document) if overrides else document
    errors = ErrorCollector()
    for override in overrides:
        with errors.check():
            location, value = parse_override(override)
            _assign(result, location, value, f"--set {override}")
    errors.raise_all()
    return result


def override_at(location: FieldPath, overrides: Sequence[str]) -> str | None:
    """The last override that set the field at a location, or an object around it; None: none
    did."""
    return _last(overrides, lambda target: _begins_with(location, target))


def override_inside(location: FieldPath, overrides: Sequence[str]) -> str | None:
    """The last override that set a value inside the field at a location; None: none did."""
    return _last(overrides, lambda target: _begins_with(target, location))


def _last(overrides: Sequence[str], matches: Callable[[FieldPath], bool]) -> str | None:
    targets = ((override, parse_override(override)[0]) for override in reversed(overrides))
    return next((override for override, target in targets if matches(target)), None)


def _begins_with(location: FieldPath, start: FieldPath) -> bool:
    return _as_text(location[: len(start)]) == _as_text(start)


def parse_override(override: str) -> tuple[FieldPath, Any]:
    """Split PATH=VALUE into the path's segments and the value.

    Raises:
        OverrideError: the text has another form, or its value is not YAML.
    """
    location, end = _parse_path(override)
    if not location or override[end : end + 1] != "=":
        raise OverrideError(
            f"--set {override}: no field with a value, allowed PATH=VALUE; write for example --set "
            "spec.schedule.steps=3"
        )
    text = override[end + 1 :]
    documents, problems = read_documents(text)
    if problems or len(documents) > 1:
        reason = problems[0].what if problems else "several documents"
        raise OverrideError(
            f"--set {override}: its value is not YAML ({reason}): got {text!r}; put a text with "
            "special characters in double quotes"
        )
    return location, documents[0].value if documents else None


def _parse_path(override: str) -> tuple[FieldPath, int]:
    segments: list[str | int] = []
    position = 0
    while match := _SEGMENT.match(override, position):
        name, bracketed = match.groups()
        segment = (name or bracketed).strip()
        # A short number is an index of a list; in a map it is converted back to a key.
        segments.append(int(segment) if segment.isdecimal() and len(segment) < 9 else segment)
        position = match.end()
    return tuple(segments), position


def _as_text(location: FieldPath) -> tuple[str, ...]:
    return tuple(map(str, location))


def assign(document: Any, location: FieldPath, value: Any) -> None:
    """Set a field of a document in place, creating missing maps around it.

    Raises:
        OverrideError: the path leads through a value that is no map, or an index is too large.
    """
    _assign(document, location, value, path_text(location))


def _assign(document: Any, location: FieldPath, value: Any, override: str) -> None:
    node = document
    for length, segment in enumerate(location):
        last = length == len(location) - 1
        if isinstance(node, dict):
            key = str(segment)
            if last:
                node[key] = value
                return
            if node.get(key) is None:
                node[key] = {}
            node = node[key]
        elif isinstance(node, list):
            index = _index(node, segment, location[: length + 1], override)
            if last:
                node[index] = value
                return
            node = node[index]
        else:
            raise OverrideError(
                f"{override}: {path_text(location[:length]) or 'the document'} is no map, "
                f"got {node!r}; set that field as a whole"
            )


def _index(node: list[Any], segment: str | int, location: FieldPath, override: str) -> int:
    if isinstance(segment, int) and segment < len(node):
        return segment
    allowed = f"0 to {len(node) - 1}" if node else "none, the list is empty"
    raise OverrideError(
        f"{override}: {path_text(location)} is no entry of the list, got {segment}, allowed "
        f"{allowed}; set the whole list to add entries"
    )
