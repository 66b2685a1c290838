"""Losses and operations as a manifest stores them: the name of a class, and plain settings.

Reading validates everything: a manifest may come from anybody.
"""

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

# A manifest may come from anybody, so nothing is imported by its name: these are all classes that
# reading can build.
LOSSES: Mapping[str, type[Loss]] = {kind.__name__: kind for kind in get_args(Loss)}
OPERATIONS: Mapping[str, type[Operation]] = {kind.__name__: kind for kind in get_args(Operation)}
# Stored terms left the estimator of a KL penalty out while it had these defaults.
FORMER_KL_ESTIMATORS: Mapping[str, str] = {
    "ClippedLoss": "K3",
    "PenalizedScores": "K1",
    "TokenRewards": "K1",
}


def write_term(term: Loss | Operation) -> GraphTerm:
    """Write a loss or an operation for a manifest.

    Raises:
        InvalidGraph: a setting that a manifest cannot hold.
    """
    name = type(term).__name__
    # Defaults are left out, which keeps manifests short.
    changed = {
        setting.name: value
        for setting in fields(term)
        if (value := getattr(term, setting.name)) != _default(setting)
    }
    settings = {
        key: plain
        for setting, value in changed.items()
        for key, plain in _flat(name, setting, value)
    }
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
    """Read a loss of a manifest's graph.

    Raises:
        InvalidGraph: no such loss, or invalid settings.
    """
    loss: Loss = _build("loss", LOSSES, term)
    return loss


def read_operation(term: GraphTerm) -> Operation:
    """Read an operation of a manifest's graph.

    Raises:
        InvalidGraph: no such operation, or invalid settings.
    """
    operation: Operation = _build("operation", OPERATIONS, term)
    return operation


def _build(label: str, kinds: Mapping[str, type[Any]], term: GraphTerm) -> Any:
    kind = kinds.get(term.type)
    if kind is None:
        raise InvalidGraph(
            f"no such {label}: got {term.type}, allowed {', '.join(kinds)}; "
            f"{suggest(term.type, kinds, 'run `rlhf fill FILE` with this release')}"
        )
    # By setting: its plain values, by index or key. A single value has the key "".
    stored: dict[str, dict[str, Setting]] = {}
    for path, value in _with_kl_estimator(term).items():
        name, _, inner = path.partition(".")
        stored.setdefault(name, {})[inner] = value
    hints = _hints(kind)
    arguments: dict[str, object] = {}
    for name, values in stored.items():
        if name not in hints:
            raise _invalid(term, name, "a setting of another name", ", ".join(hints))
        arguments[name] = _value(term, name, hints[name], values)
    # An empty list or map leaves no plain value behind.
    for setting in fields(kind):
        if setting.name not in arguments and _is_required(setting):
            arguments |= _empty(term, setting.name, hints[setting.name])
    try:
        return kind(**arguments)
    except FlowError as error:
        raise InvalidGraph(str(error)) from error


def _with_kl_estimator(term: GraphTerm) -> Mapping[str, Setting]:
    settings, estimator = term.settings, FORMER_KL_ESTIMATORS.get(term.type)
    if estimator is None or "kl_estimator" in settings or not settings.get("kl_coefficient"):
        return settings
    return {**settings, "kl_estimator": estimator}


def _flat(owner: str, name: str, value: object) -> Iterator[tuple[str, Setting]]:
    """A setting as plain values: entries of lists and maps get the names NAME.INDEX, NAME.KEY."""
    if isinstance(value, Enum):
        # By the member's name, since its value is a wording for messages.
        yield name, value.name
    elif isinstance(value, bool | int | float | str):
        yield name, value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _flat(owner, f"{name}.{key}", item)
    elif isinstance(value, Sequence):
        for index, item in enumerate(value):
            yield from _flat(owner, f"{name}.{index}", item)
    else:
        raise InvalidGraph(
            f"a setting of {owner} that a manifest cannot hold: got {name}={value!r}, allowed "
            "texts, numbers, true or false, and lists and maps of them; without it the driver "
            "plans first"
        )


def _value(term: GraphTerm, name: str, hint: Any, plain: Mapping[str, Setting]) -> object:
    """A setting from its plain values, by their indices or keys; "" for a single value."""
    kind = _without_none(hint)
    origin = get_origin(kind)
    if origin is not None and issubclass(origin, Mapping):
        return {key: _plain(term, name, get_args(kind)[1], item) for key, item in plain.items()}
    if origin is not None and issubclass(origin, Sequence):
        # Indices without a gap, in any order.
        numbers = [str(index) for index in range(len(plain))]
        if set(numbers) != set(plain):
            raise _invalid(term, name, ", ".join(plain), f"entries {name}.0 and so on")
        entry = get_args(kind)[0]
        return tuple(_plain(term, name, entry, plain[number]) for number in numbers)
    if list(plain) != [""]:
        raise _invalid(term, name, ", ".join(plain), "one value")
    return _plain(term, name, kind, plain[""])


def _plain(term: GraphTerm, name: str, kind: Any, value: Setting) -> object:
    """Convert a plain value to the type of its setting: names to members, integers to floats."""
    kinds = get_args(kind) or (kind,)
    if isinstance(kind, type) and issubclass(kind, Enum):
        if value in kind.__members__:
            return kind[str(value)]
        raise _invalid(term, name, repr(value), ", ".join(kind.__members__))
    # Not isinstance: True is an int, too.
    if type(value) in kinds:
        return value
    # Kubernetes stores 1.0 as 1.
    if float in kinds and type(value) is int:
        return float(value)
    raise _invalid(term, name, repr(value), " or ".join(allowed.__name__ for allowed in kinds))


def _invalid(term: GraphTerm, name: str, got: str, allowed: str) -> InvalidGraph:
    return InvalidGraph(
        f"{term.type} cannot have this {name}: got {got}, allowed {allowed}; run `rlhf fill FILE`"
    )


def _hints(kind: type[Any]) -> Mapping[str, Any]:
    """The types of a class's settings."""
    hints = get_type_hints(kind)
    return {setting.name: hints[setting.name] for setting in fields(kind)}


def _without_none(hint: Any) -> Any:
    """X for `X | None`."""
    if get_origin(hint) in (Union, UnionType):
        kinds = [kind for kind in get_args(hint) if kind is not NoneType]
        return kinds[0] if len(kinds) == 1 else hint
    return hint


def _default(setting: Field[Any]) -> object:
    """A setting's default, or MISSING."""
    if setting.default_factory is not MISSING:
        return setting.default_factory()
    return setting.default


def _is_required(setting: Field[Any]) -> bool:
    return setting.default is MISSING and setting.default_factory is MISSING


def _empty(term: GraphTerm, name: str, hint: Any) -> dict[str, object]:
    """The empty list or map of a setting without plain values."""
    # Any other required setting would have left a value.
    origin = get_origin(_without_none(hint))
    if origin in (None, Union, UnionType):
        raise _invalid(term, name, "nothing", "a value")
    return {name: {} if issubclass(origin, Mapping) else ()}
