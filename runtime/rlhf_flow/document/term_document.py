"""Losses and operations as a manifest's graph holds them: a class's name, and its settings as plain
values. What reads them here takes nothing on trust: a graph may come from anybody."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, fields
from enum import Enum
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from pydantic import ValidationError

from rlhf_api.spec.algorithm_graph import GraphTerm, Setting
from rlhf_flow.errors import FlowError, InvalidGraph
from rlhf_flow.step.checks import suggest
from rlhf_flow.step.losses import Loss
from rlhf_flow.step.operations import Operation

LOSSES: Mapping[str, type[Loss]] = {kind.__name__: kind for kind in get_args(Loss)}
OPERATIONS: Mapping[str, type[Operation]] = {kind.__name__: kind for kind in get_args(Operation)}


def write_term(term: Loss | Operation) -> GraphTerm:
    """A loss or an operation for a manifest.

    Raises:
        InvalidGraph: a setting that a manifest cannot hold.
    """
    name = type(term).__name__
    changed = {
        each.name: value
        for each in fields(term)
        if (value := getattr(term, each.name)) != _default(each)
    }
    settings = {key: value for each in changed.items() for key, value in _flat(name, *each)}
    try:
        return GraphTerm(type=name, settings=settings)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise InvalidGraph(
            f"a setting of {name} that a manifest cannot hold: got {first['input']!r} "
            f"({first['msg']}), allowed short texts, numbers and true or false; without it the "
            "driver plans first"
        ) from error


def read_loss(term: GraphTerm) -> Loss:
    """The loss of a manifest's graph.

    Raises:
        InvalidGraph: there is none such, or it cannot have these settings.
    """
    loss: Loss = _built("loss", LOSSES, term)
    return loss


def read_operation(term: GraphTerm) -> Operation:
    """The operation of a manifest's graph.

    Raises:
        InvalidGraph: there is none such, or it cannot have these settings.
    """
    operation: Operation = _built("operation", OPERATIONS, term)
    return operation


def _built(what: str, kinds: Mapping[str, type[Any]], term: GraphTerm) -> Any:
    kind = kinds.get(term.type)
    if kind is None:
        raise InvalidGraph(
            f"no such {what}: got {term.type}, allowed {', '.join(kinds)}; "
            f"{suggest(term.type, kinds, 'run `rlhf fill FILE` with this release')}"
        )
    given: dict[str, dict[str, Setting]] = {}
    for path, value in term.settings.items():
        name, _, inner = path.partition(".")
        given.setdefault(name, {})[inner] = value
    hints = _hints(kind)
    arguments: dict[str, object] = {}
    for name, values in given.items():
        if name not in hints:
            raise _wrong(term, name, "a setting of another name", ", ".join(hints))
        arguments[name] = _value(term, name, hints[name], values)
    for each in fields(kind):
        if each.name not in arguments and _is_required(each):
            arguments |= _empty(term, each.name, hints[each.name])
    try:
        return kind(**arguments)
    except FlowError as error:
        raise InvalidGraph(str(error)) from error


def _flat(owner: str, name: str, value: object) -> Iterator[tuple[str, Setting]]:
    """A setting as plain values: those of lists and maps under names of their own."""
    if isinstance(value, Enum):
        yield name, value.name
    elif isinstance(value, bool | int | float | str):
        yield name, value
    elif isinstance(value, Mapping):
        for key, each in value.items():
            yield from _flat(owner, f"{name}.{key}", each)
    elif isinstance(value, Sequence):
        for index, each in enumerate(value):
            yield from _flat(owner, f"{name}.{index}", each)
    else:
        raise InvalidGraph(
            f"a setting of {owner} that a manifest cannot hold: got {name}={value!r}, allowed "
            "texts, numbers, true or false, and lists and maps of them; without it the driver "
            "plans first"
        )


def _value(term: GraphTerm, name: str, hint: Any, given: Mapping[str, Setting]) -> object:
    """A setting from its plain values, by what follows its name."""
    kind = _given_kind(hint)
    origin = get_origin(kind)
    if origin is not None and issubclass(origin, Mapping):
        return {key: _plain(term, name, get_args(kind)[1], each) for key, each in given.items()}
    if origin is not None and issubclass(origin, Sequence):
        numbers = [str(index) for index in range(len(given))]
        if set(numbers) != set(given):
            raise _wrong(term, name, ", ".join(given), f"entries {name}.0 and so on")
        entry = get_args(kind)[0]
        return tuple(_plain(term, name, entry, given[number]) for number in numbers)
    if list(given) != [""]:
        raise _wrong(term, name, ", ".join(given), "one value")
    return _plain(term, name, kind, given[""])


def _plain(term: GraphTerm, name: str, kind: Any, value: Setting) -> object:
    """A plain value as its setting has it: whole numbers stand for others, names for members."""
    kinds = get_args(kind) or (kind,)
    if isinstance(kind, type) and issubclass(kind, Enum):
        if value in kind.__members__:
            return kind[str(value)]
        raise _wrong(term, name, repr(value), ", ".join(kind.__members__))
    if type(value) in kinds:
        return value
    if float in kinds and type(value) is int:
        return float(value)
    raise _wrong(term, name, repr(value), " or ".join(each.__name__ for each in kinds))


def _wrong(term: GraphTerm, name: str, got: str, allowed: str) -> InvalidGraph:
    return InvalidGraph(
        f"{term.type} cannot have this {name}: got {got}, allowed {allowed}; run `rlhf fill FILE`"
    )


def _hints(kind: type[Any]) -> Mapping[str, Any]:
    """The types of a class's settings."""
    hints = get_type_hints(kind)
    return {each.name: hints[each.name] for each in fields(kind)}


def _given_kind(hint: Any) -> Any:
    """The type of a setting where it is given: of `X | None` X."""
    if get_origin(hint) in (Union, UnionType):
        kept = [each for each in get_args(hint) if each is not NoneType]
        return kept[0] if len(kept) == 1 else hint
    return hint


def _default(each: Field[Any]) -> object:
    """A setting's default; MISSING: it has none."""
    return each.default_factory() if each.default_factory is not MISSING else each.default


def _is_required(each: Field[Any]) -> bool:
    return each.default is MISSING and each.default_factory is MISSING


def _empty(term: GraphTerm, name: str, hint: Any) -> dict[str, object]:
    """A list or a map of which nothing is given: an empty one."""
    origin = get_origin(_given_kind(hint))
    if origin in (None, Union, UnionType):
        raise _wrong(term, name, "nothing", "a value")
    return {name: {} if issubclass(origin, Mapping) else ()}
