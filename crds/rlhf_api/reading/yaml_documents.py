"""YAML text as plain values with their positions.

Built from PyYAML's events instead of its loaders: values follow YAML 1.2, a duplicate key is a
problem, and every field has a line and column. Hostile input (deep nesting, alias bombs, tags that
name Python objects) ends early with a problem. This module is independent of RLHFJob.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import yaml
from yaml.events import (
    AliasEvent,
    CollectionEndEvent,
    DocumentStartEvent,
    Event,
    MappingStartEvent,
    NodeEvent,
    ScalarEvent,
    SequenceStartEvent,
)

from rlhf_api.problems import FieldPath, Problem
from rlhf_api.reading.yaml_errors import Position, YamlError, syntax_error
from rlhf_api.reading.yaml_scalars import Scalar, kubectl_scalar, plain_scalar

# Longest text of a file. A Kubernetes object may have about 1 MiB with its status; manifests have a
# few KiB.
MAX_CHARACTERS = 256 * 1024
# Deepest nesting; the contract itself has nine levels.
MAX_DEPTH = 32
# Largest sum over all values of a file, with aliases expanded: characters plus _VALUE_SIZE each.
MAX_SIZE = 1024 * 1024

_TAG = "tag:yaml.org,2002:"
_VALUE_SIZE = 8


@dataclass
class Document:
    """One YAML document: its value, and the position of every part."""

    value: Any
    keys: dict[FieldPath, Position] = field(default_factory=dict)
    """Position of each member of a mapping: that of its key."""
    values: dict[FieldPath, Position] = field(default_factory=dict)
    """Position of each value; values inside an alias have none."""
    ambiguous: dict[FieldPath, str] = field(default_factory=dict)
    """Unquoted values and keys that kubectl reads in another way."""

    def key_position(self, path: FieldPath) -> Position:
        """Position of the member at a path, or of the nearest value around it."""
        return self.keys.get(path) or self.value_position(path)

    def value_position(self, path: FieldPath) -> Position:
        """Position of the value at a path, or of the nearest value around it.

        A map or list that begins below its key has the position of the key.
        """
        for length in range(len(path), -1, -1):
            value, key = self.values.get(path[:length]), self.keys.get(path[:length])
            if value is not None:
                return key if key is not None and key.line != value.line else value
        return Position(1, 1)


def read_documents(text: str, file: str = "") -> tuple[list[Document], list[Problem]]:
    """Read every document of a text.

    Reading ends at the first syntax error; after a duplicate key it continues. Empty documents are
    left out.

    Returns:
        The documents, and the problems.
    """
    reader = _Reader(file)
    try:
        if len(text) > MAX_CHARACTERS:
            raise YamlError(
                Position(1, 1),
                "too large for a manifest",
                got=f"{len(text)} characters",
                allowed=f"at most {MAX_CHARACTERS}",
                do="split the file, or check that it is the right one",
            )
        reader.read(text.removeprefix("\ufeff"))
    except YamlError as error:
        reader.report(error)
    except (yaml.YAMLError, ValueError) as error:
        reader.report(syntax_error(error, text))
    return reader.documents, reader.problems


@dataclass(frozen=True)
class _Anchored:
    """A value with an anchor, which aliases may repeat."""

    value: Any
    size: int
    height: int


class _Reader:
    """Builds documents from events."""

    def __init__(self, file: str) -> None:
        self.documents: list[Document] = []
        self.problems: list[Problem] = []
        self._file = file
        self._size = 0
        self._anchors: dict[str, _Anchored] = {}
        self._document = Document(None)
        self._events: Iterator[Event] = iter(())

    def read(self, text: str) -> None:
        """Read the text.

        Raises:
            YamlError, yaml.YAMLError, ValueError: the text is not YAML.
        """
        self._events = yaml.parse(text, Loader=yaml.SafeLoader)
        for event in self._events:
            if isinstance(event, DocumentStartEvent):
                self._anchors = {}
                self._document = Document(None)
                self._document.value = self._value(next(self._events), ())
                if self._document.value is not None:
                    self.documents.append(self._document)

    def report(self, error: YamlError, location: FieldPath = ()) -> None:
        """Record a problem."""
        self.problems.append(replace(error.problem, location=location, file=self._file))

    def _value(self, event: Event, path: FieldPath) -> Any:
        assert isinstance(event, NodeEvent)
        position = self._document.values[path] = _position(event)
        if isinstance(event, AliasEvent):
            return self._repeat(event, path)
        _require_depth(len(path), position)
        size_before = self._size
        self._grow(_VALUE_SIZE, position)
        if isinstance(event, ScalarEvent):
            self._grow(len(event.value), position)
            value: Any = _scalar(event)
            self._note_ambiguity(event, value, path)
        elif isinstance(event, SequenceStartEvent):
            _require_tag(event, "seq")
            value = self._sequence(path)
        else:
            assert isinstance(event, MappingStartEvent)
            _require_tag(event, "map")
            value = self._mapping(path)
        if event.anchor is not None:
            size = self._size - size_before
            self._anchors[event.anchor] = _Anchored(value, size, _height(value))
        return value

    def _sequence(self, path: FieldPath) -> list[Any]:
        items: list[Any] = []
        while not isinstance(event := next(self._events), CollectionEndEvent):
            items.append(self._value(event, (*path, len(items))))
        return items

    def _mapping(self, path: FieldPath) -> dict[str, Any]:
        members: dict[str, Any] = {}
        while not isinstance(event := next(self._events), CollectionEndEvent):
            key, position = self._key(event, path), _position(event)
            member = (*path, key)
            if key in members:
                first = self._document.keys[member]
                got = f"the first in line {first.line}"
                error = YamlError(position, "a key given twice", got=got, do="keep one of them")
                self.report(error, member)
            self._document.keys[member] = position
            members[key] = self._value(next(self._events), member)
        return members

    def _key(self, event: Event, path: FieldPath) -> str:
        position = _position(event)
        if not isinstance(event, ScalarEvent):
            raise YamlError(position, "a key that is not a text", do="write name: value")
        self._grow(_VALUE_SIZE + len(event.value), position)
        key = _scalar(event)
        self._note_ambiguity(event, key, (*path, event.value))
        if key == "<<" and event.style is None:
            raise YamlError(position, "a merge key", got="<<", do="write the merged keys out")
        if not isinstance(key, str):
            got, do = event.value or "nothing", f'write "{event.value}", in quotes'
            self.report(YamlError(position, "a key that is not a text", got=got, do=do), path)
        return event.value

    def _note_ambiguity(self, event: ScalarEvent, value: Scalar, path: FieldPath) -> None:
        if event.tag is not None or event.style is not None:
            return
        # By their texts: NaN equals nothing, not even itself.
        if repr(kubectl_scalar(event.value)) != repr(value):
            self._document.ambiguous[path] = event.value

    def _repeat(self, event: AliasEvent, path: FieldPath) -> Any:
        position = _position(event)
        anchored = self._anchors.get(str(event.anchor))
        if anchored is None:
            raise YamlError(position, "an alias without its anchor", got=f"*{event.anchor}")
        # Aliases of aliases multiply: count what they would expand to.
        self._grow(anchored.size, position)
        _require_depth(len(path) + anchored.height, position)
        return anchored.value

    def _grow(self, size: int, position: Position) -> None:
        self._size += size
        if self._size > MAX_SIZE:
            raise YamlError(
                position,
                "too much for a manifest",
                got=f"more than {MAX_SIZE} characters with all aliases written out",
                do="remove the aliases or split the file",
            )


def _position(event: Event) -> Position:
    mark = event.start_mark
    assert mark is not None, "the parser marks every event"
    return Position(mark.line + 1, mark.column + 1)


def _require_depth(depth: int, position: Position) -> None:
    if depth > MAX_DEPTH:
        raise YamlError(position, "nested too deep", allowed=f"{MAX_DEPTH} levels")


def _require_tag(event: SequenceStartEvent | MappingStartEvent, name: str) -> None:
    if event.tag not in (None, "!", _TAG + name):
        raise _foreign_tag(event)


def _foreign_tag(event: SequenceStartEvent | MappingStartEvent | ScalarEvent) -> YamlError:
    return YamlError(
        _position(event),
        "a tag that a manifest cannot have",
        got=str(event.tag).replace(_TAG, "!!"),
        allowed="plain texts, numbers, true, false, lists and maps",
        do="remove the tag",
    )


def _scalar(event: ScalarEvent) -> Scalar:
    text: str = event.value
    # JSON cannot carry half of a surrogate pair.
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise YamlError(
            _position(event), "half a character", got=ascii(text), do="write it completely"
        )
    value = plain_scalar(text)
    if event.tag is None:
        return value if event.style is None else text
    kinds: dict[str, type | tuple[type, ...]] = {
        "null": type(None),
        "bool": bool,
        "int": int,
        "float": (int, float),
    }
    name = event.tag.removeprefix(_TAG)
    if name in ("!", "str"):
        return text
    if name not in kinds or not isinstance(value, kinds[name]):
        raise _foreign_tag(event)
    return value


def _height(value: Any) -> int:
    members = value.values() if isinstance(value, dict) else value
    if not isinstance(value, dict | list):
        return 0
    return 1 + max((_height(member) for member in members), default=0)
