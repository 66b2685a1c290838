"""Edits of one field in a YAML text. Comments, order, quotes and indentation of the rest are kept.

The text is changed at the positions of PyYAML's nodes. The result is read again and compared, so an
unforeseen style of YAML is refused instead of broken. This module is independent of RLHFJob.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

import yaml
from yaml.nodes import CollectionNode, MappingNode, Node, ScalarNode, SequenceNode

from rlhf_api.problems import FieldPath, path_text
from rlhf_api.reading.overrides import assign
from rlhf_api.reading.yaml_documents import read_documents
from rlhf_api.reading.yaml_scalars import plain_scalar
from rlhf_api.yaml_dump import dump_yaml

# Longest line of written YAML, where it can be broken.
WIDTH = 96
_ALIAS = re.compile(r"\s*:\s*\*[^\s,\]}]+")
# A key with its value.
Entry = tuple[Node, Node]


class CannotEdit(ValueError):
    """A field cannot be set without other changes to the text."""


def set_field(text: str, number: int, path: FieldPath, value: Any) -> str:
    """Set a field in a text.

    Args:
        text: one or several documents, which `read_documents` reads without a problem.
        number: index of the document, as `read_documents` counts them.
        path: of the field; the object around it exists.
        value: plain values.

    Returns:
        The changed text.

    Raises:
        CannotEdit: the field is repeated by an alias, or has an unsupported style.
    """
    before, roots = _read(text)
    edited = _edited(text, roots[number], path, value)
    assign(before[number], path, value)
    documents, problems = read_documents(edited)
    if problems:
        raise CannotEdit(f"{path_text(path)} cannot be set: {problems[0].message}")
    if [document.value for document in documents] != before:
        raise CannotEdit(f"{path_text(path)} cannot be set without changing more of the text")
    return edited


def rename_field(text: str, number: int, path: FieldPath, name: str) -> str:
    """Rename a field in a text, as `set_field`.

    Args:
        path: of the field, which exists.
        name: a plain word.

    Raises:
        CannotEdit: the field is within an alias, or the new name exists.
    """
    before, roots = _read(text)
    holder, parent = before[number], roots[number]
    for segment in path[:-1]:
        holder, parent = holder[segment], _child(parent, segment, path)
    if name in holder:
        raise CannotEdit(f"{path_text(path)} stands beside {name}: remove one of them")
    holder[name] = holder.pop(path[-1])
    key = next(entry[0] for entry in parent.value if entry[0].value == path[-1])
    word = f"{key.style}{name}{key.style}" if key.style else name
    edited = text[: key.start_mark.index] + word + text[key.end_mark.index :]
    if [document.value for document in read_documents(edited)[0]] != before:
        raise CannotEdit(f"{path_text(path)} cannot be renamed without changing more of the text")
    return edited


def _read(text: str) -> tuple[list[Any], list[Node]]:
    """Return the values and the nodes of a text's documents."""
    # A copy by JSON, in which aliases share no values.
    values = json.loads(json.dumps([document.value for document in read_documents(text)[0]]))
    composed = yaml.compose_all(text, Loader=yaml.SafeLoader)
    return values, [root for root in composed if _has_value(root)]


def _has_value(root: Node | None) -> bool:
    return root is not None and not (
        isinstance(root, ScalarNode) and plain_scalar(root.value) is None
    )


def _edited(text: str, root: Node, path: FieldPath, value: Any) -> str:
    parents = [root]
    for segment in path[:-1]:
        parents.append(_child(parents[-1], segment, path))
    parent, name = parents[-1], str(path[-1])
    if not isinstance(parent, MappingNode) or not parent.value:
        raise CannotEdit(f"{path_text(path[:-1])} is no map with fields: write one")
    entry = next((entry for entry in parent.value if entry[0].value == name), None)
    if entry is not None and _is_alias(entry):
        raise CannotEdit(f"{path_text(path)} is an alias: write out what it repeats")
    line_break = "\r\n" if "\r\n" in text else "\n"
    # Keep the style of the mapping around the field.
    if not parent.flow_style:
        return _in_block(text, parent, entry, name, value, line_break)
    outer = parents[-2] if len(parents) > 1 else None
    # A nested value on one line would be unreadable, so a one-line {} becomes a block.
    is_nested = any(isinstance(member, dict | list) for member in _members(value))
    holder = _holder(outer, parent)
    if is_nested and holder is not None and "\n" not in _slice(text, parent):
        return _as_block(text, parent, holder, name, value, line_break)
    return _in_flow(text, parent, entry, name, value, line_break)


def _child(node: Node, segment: str | int, path: FieldPath) -> Node:
    """The child of a node under a name or index.

    Raises:
        CannotEdit: the child is an alias.
    """
    if isinstance(node, SequenceNode) and isinstance(segment, int):
        child: Node = node.value[segment]
        # PyYAML's node of an alias is the anchored node, which begins earlier in the text.
        is_repeated = child.start_mark.index < node.start_mark.index
    else:
        entry = next(entry for entry in node.value if entry[0].value == segment)
        child, is_repeated = entry[1], _is_alias(entry)
    if is_repeated:
        raise CannotEdit(f"{path_text(path)} is within an alias: write out what it repeats")
    return child


# True if the value is an alias: it begins before its key.
def _is_alias(entry: Entry) -> bool:
    key, value = entry
    return bool(value.start_mark.index < key.end_mark.index)


def _in_block(
    text: str, parent: MappingNode, entry: Entry | None, name: str, value: Any, line_break: str
) -> str:
    """Set a field of a block mapping, which has one line for each field."""
    indent = " " * parent.value[0][0].start_mark.column
    lines = _block(name, value, indent)
    if entry is not None:
        start, end = entry[0].start_mark.index, _end(text, entry)
        return text[:start] + line_break.join(lines).lstrip(" ") + text[end:]
    position = _next_line(text, _end(text, parent.value[-1]))
    written = "".join(line + line_break for line in lines)
    # The last line of a file may lack its line break.
    if position and not text[:position].endswith("\n"):
        written = line_break + written
    return text[:position] + written + text[position:]


def _in_flow(
    text: str, parent: MappingNode, entry: Entry | None, name: str, value: Any, line_break: str
) -> str:
    """Set a field of a flow mapping (in braces), as JSON if the mapping is JSON."""
    is_json = parent.value[0][0].style == '"'
    indent = " " * (_indentation(text, parent) + 4)
    if is_json:
        flow = json.dumps(value)
    else:
        lines = _dumped(value, True, len(indent)).splitlines()
        flow = f"{line_break}{indent}".join(lines)
    if entry is not None:
        return text[: entry[1].start_mark.index] + flow + text[_end(text, entry) :]
    position = _end(text, parent.value[-1])
    key = json.dumps(name) if is_json else name
    return f"{text[:position]}, {key}: {flow}{text[position:]}"


def _as_block(
    text: str, parent: MappingNode, holder: Entry, name: str, value: Any, line_break: str
) -> str:
    """Convert a one-line flow mapping to a block mapping, with the new value in several lines."""
    indent = " " * (holder[0].start_mark.column + 2)
    lines = [
        indent + text[entry[0].start_mark.index : _end(text, entry)]
        for entry in parent.value
        if entry[0].value != name
    ]
    lines += _block(name, value, indent)
    rest = text[parent.end_mark.index :]
    comment = re.match(r"[ \t]*(#[^\r\n]*)", rest)  # about the complete mapping: keep it at the key
    shown = f"  {comment[1]}" if comment else ""
    written = shown + line_break + line_break.join(lines)
    before = text[: parent.start_mark.index].rstrip(" ")
    return before + written + rest[comment.end() if comment else 0 :]


# The entry of a block mapping whose value is this node; None if the parent is no such mapping.
def _holder(outer: Node | None, node: MappingNode) -> Entry | None:
    if not isinstance(outer, MappingNode) or outer.flow_style:
        return None
    entries: list[Entry] = outer.value
    return next(entry for entry in entries if entry[1] is node)


def _end(text: str, entry: Entry) -> int:
    """End of a value's text, without comments and blank lines after it."""
    key, value = entry
    if _is_alias(entry):
        alias = _ALIAS.match(text, key.end_mark.index)
        return alias.end() if alias else int(key.end_mark.index)
    return _end_of(text, value)


def _end_of(text: str, node: Node) -> int:
    """End of the text of a node that is no alias."""
    if not isinstance(node, CollectionNode) or node.flow_style or not node.value:
        return int(node.end_mark.index)
    if isinstance(node, MappingNode):
        return _end(text, node.value[-1])
    last = node.value[-1]
    # The end of an alias in a list is unknown; the end of the list is behind it.
    is_alias = last.start_mark.index < node.start_mark.index
    return int(node.end_mark.index) if is_alias else _end_of(text, last)


# Start of the next line; the position itself if it starts a line.
def _next_line(text: str, position: int) -> int:
    if position == 0 or text[position - 1] == "\n":
        return position
    line_end = text.find("\n", position)
    return len(text) if line_end < 0 else line_end + 1


def _slice(text: str, node: Node) -> str:
    return text[node.start_mark.index : node.end_mark.index]


# Indentation of the line on which a node begins.
def _indentation(text: str, node: Node) -> int:
    line = text[node.start_mark.index - node.start_mark.column : node.start_mark.index]
    return len(line) - len(line.lstrip(" "))


def _members(value: Any) -> Sequence[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []


def _block(name: str, value: Any, indent: str) -> list[str]:
    if isinstance(value, dict | list):
        text = _dumped({name: value}, None, len(indent))
    else:
        text = f"{_dumped(name, None, 0)}: {_dumped(value, None, len(indent))}"
    return [indent + line for line in text.splitlines()]


def _dumped(value: Any, flow: bool | None, indent: int) -> str:
    text = dump_yaml(
        value,
        default_flow_style=flow,
        width=max(WIDTH - indent, WIDTH // 2),
        allow_unicode=True,
    )
    return text.removesuffix("\n...\n").rstrip("\n")
