"""Explanations of the contract's fields, in the form of `kubectl explain`."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterator

from rlhf_api.api_names import API_VERSION, KIND
from rlhf_api.errors import UnknownFieldError
from rlhf_api.reading.fields import NO_DEFAULT, FieldDoc, contract
from rlhf_api.reading.suggestions import paths_named, suggest

_WIDTH = 96
_SPEC = "spec"
_INDEX = re.compile(r"\[\d*\]")
_KEY = re.compile(r"\[([^\[\]]+)\]|<[^<>]*>|[^.\[\]<>]+")


def explain(path: str = "", *, recursive: bool = False) -> str:
    """Explain the field at a path such as spec.models.actor.source; the complete manifest for "".

    `spec`, indices of lists and keys of maps may be left out (rewards.function). With `recursive`
    the complete tree below the field is listed instead of one level.

    Raises:
        UnknownFieldError: there is no such field; the message names similar ones.
    """
    field = find_field(path)
    lines = [f"KIND:     {KIND}", f"VERSION:  {API_VERSION}", ""]
    if field.path:
        lines += [f"FIELD: {field.path} <{field.type_name}>{_required(field)}", ""]
    lines += ["DESCRIPTION:", *_indented(field.description or field.type_description, 4)]
    if field.object_fields and field.type_description not in ("", field.description):
        lines += ["", *_indented(field.type_description, 4)]
    lines += ["", *_value_section(field)]
    if field.object_fields:
        listing = _tree(field, 2) if recursive else _members(field)
        lines += ["FIELDS:", *listing]
    return "\n".join(lines).rstrip() + "\n"


def find_field(path: str) -> FieldDoc:
    """The field at a path.

    Raises:
        UnknownFieldError: there is no such field.
    """
    segments = _segments(path)
    node = contract()
    for position, segment in enumerate(segments):
        child = _member(node, segment)
        if child is None:
            raise _unknown(segment, node, segments[:position])
        node = child
    return node


def _segments(path: str) -> list[str]:
    names = [match.group(1) or match.group(0) for match in _KEY.finditer(_INDEX.sub("", path))]
    if not names:
        return names
    if names[0].lower() == KIND.lower():
        return names[1:]
    # Messages and guides leave spec out.
    spec = contract().field(_SPEC)
    is_below = contract().field(names[0]) is None and spec is not None and spec.field(names[0])
    return [_SPEC, *names] if is_below else names


def _member(node: FieldDoc, segment: str) -> FieldDoc | None:
    """A field of the object that a node is or contains, or the value of a map under a key."""
    # Paths may leave out indices of lists and keys of maps.
    while node.kind == "list" and node.element is not None:
        node = node.element
    if node.kind == "map" and node.element is not None:
        return node.element.field(segment) or node.element
    return node.field(segment)


def _unknown(segment: str, node: FieldDoc, before: list[str]) -> UnknownFieldError:
    parent = ".".join(before) or KIND
    names = ", ".join(field.name for field in node.object_fields)
    if not names:
        return UnknownFieldError(f"{parent} is {node.allowed or 'a plain value'}: it has no fields")
    owner = node
    while owner.element is not None:
        owner = owner.element
    hint = suggest(segment, owner)
    if not hint:
        paths = paths_named(segment)
        hint = f"did you mean {' or '.join(paths[:3])}?" if paths else "choose one of them"
    return UnknownFieldError(f"{parent} has no field {segment}: allowed {names}; {hint}")


def _required(field: FieldDoc) -> str:
    return " -required-" if field.required and field.name else ""


def _value_section(field: FieldDoc) -> list[str]:
    """The section on allowed values, limits and default."""
    lines: list[str] = []
    if field.members:
        lines += ["ALLOWED:", *_indented_members(field), ""]
    elif field.allowed:
        lines += ["ALLOWED:", *_indented(field.allowed, 4)]
        lines += _indented(f"keys: {field.key_allowed}", 4) if field.key_allowed else []
        lines += [""]
    default = default_text(field)
    return lines + (["DEFAULT:", f"    {default}", ""] if default else [])


def _indented_members(field: FieldDoc) -> Iterator[str]:
    width = max(len(member.value) for member in field.members)
    for member in field.members:
        yield f"    {member.value:<{width}}  {member.description}".rstrip()


def default_text(field: FieldDoc) -> str:
    """The default as a manifest writes it; empty if there is none, or it is null."""
    if field.default is NO_DEFAULT or field.default is None or field.kind == "object":
        return ""
    if isinstance(field.default, str) and field.default:
        return field.default
    return json.dumps(field.default)


def _members(field: FieldDoc) -> Iterator[str]:
    for child in field.object_fields:
        default = default_text(child)
        shown = f" default {default}" if default else ""
        yield f"  {child.name} <{child.type_name}>{_required(child)}{shown}"
        yield from _indented(child.summary, 4)
        yield ""


def _tree(field: FieldDoc, depth: int) -> Iterator[str]:
    for child in field.object_fields:
        yield f"{' ' * depth}{child.name} <{child.type_name}>{_required(child)}"
        yield from _tree(child, depth + 2)


def _indented(text: str, depth: int) -> list[str]:
    return textwrap.wrap(
        text,
        width=_WIDTH,
        initial_indent=" " * depth,
        subsequent_indent=" " * depth,
        break_long_words=False,
        break_on_hyphens=False,
    )
