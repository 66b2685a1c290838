"""Refusals of settings that mean nothing, where they are written."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import Enum
from functools import wraps
from inspect import Parameter, Signature, signature
from math import isfinite
from typing import ParamSpec, TypeVar

from rlhf_api.reading.suggestions import nearest
from rlhf_flow.errors import FlowError


def check(owner: str, name: str, value: object, is_allowed: bool, allowed: str) -> None:
    """Refuse a setting's value.

    Args:
        owner: what has the setting.
        name: the setting's.
        value: what was given.
        is_allowed: whether it may be.
        allowed: what may be, in words.

    Raises:
        FlowError: it may not.
    """
    if not is_allowed:
        raise FlowError(
            f"{owner} cannot have this {name}: got {name}={value!r}, allowed {allowed}; change it"
        )


def check_member(owner: str, name: str, value: object, kind: type[Enum]) -> None:
    """Refuse what is no member of an enumeration.

    Raises:
        FlowError: it is none.
    """
    members = ", ".join(f"{kind.__name__}.{each.name}" for each in kind)
    check(owner, name, value, isinstance(value, kind), f"{members} of {kind.__module__}")


def is_count(value: object, least: int = 1) -> bool:
    """Whether a value is a whole number of at least so much."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def is_number(value: object, least: float = 0.0) -> bool:
    """Whether a value is a finite number of at least so much."""
    is_real = isinstance(value, int | float) and not isinstance(value, bool)
    return is_real and isfinite(value) and value >= least  # type: ignore[arg-type,operator]


def suggest(word: str, names: Iterable[str], otherwise: str) -> str:
    """What to do about a name that is none of those allowed: take the nearest, if one is near, or
    the shortest that begins so."""
    known = sorted(names, key=lambda name: (len(name), name))
    begun = (name for name in known if len(word) > 2 and name.startswith(word))
    near = nearest(word, known) or next(begun, "")
    return f"did you mean {near}?" if near else otherwise


P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


def checked_call(function: Callable[P, R]) -> Callable[P, R]:
    """A method that refuses wrong arguments as a FlowError."""
    takes = signature(function)

    @wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        _check_arguments(f"{type(args[0]).__name__}.{function.__name__}", takes, args, kwargs)
        return function(*args, **kwargs)

    return checked


def checked_settings(kind: type[T]) -> type[T]:
    """A dataclass whose constructor refuses wrong arguments as a FlowError."""
    build = kind.__init__
    takes = signature(build)

    @wraps(build)
    def checked(self: T, *args: object, **kwargs: object) -> None:
        _check_arguments(kind.__name__, takes, (self, *args), kwargs)
        build(self, *args, **kwargs)

    kind.__init__ = checked  # type: ignore[method-assign,assignment]
    return kind


def _check_arguments(
    name: str, takes: Signature, args: tuple[object, ...], kwargs: dict[str, object]
) -> None:
    try:
        takes.bind(*args, **kwargs)
    except TypeError as error:
        parameters = list(takes.parameters.values())[1:]
        names = [each.name for each in parameters]
        unknown = next((each for each in kwargs if each not in names), None)
        got = str(error) if unknown is None else f"{unknown}={kwargs[unknown]!r}"
        advice = "correct them" if unknown is None else suggest(unknown, names, "remove it")
        raise FlowError(
            f"{name} does not take these arguments: got {got}, allowed "
            f"{', '.join(map(_spelled, parameters)) or 'none'}; {advice}"
        ) from None


def _spelled(parameter: Parameter) -> str:
    """As a call writes it: batch, *operations, samples=."""
    if parameter.kind is Parameter.VAR_POSITIONAL:
        return f"*{parameter.name}"
    return parameter.name + ("" if parameter.default is Parameter.empty else "=")
