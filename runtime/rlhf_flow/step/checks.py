"""Checks of settings and arguments at the line where a user writes them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import Enum
from functools import wraps
from inspect import Parameter, Signature, signature
from math import isfinite
from typing import ParamSpec, TypeVar

from rlhf_api.reading.suggestions import nearest
from rlhf_flow.errors import FlowError

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


def check(owner: str, name: str, value: object, is_allowed: bool, allowed: str) -> None:
    """Refuse a value of a setting.

    Args:
        owner: object with the setting.
        name: of the setting.
        value: of the setting.
        is_allowed: False refuses it.
        allowed: the allowed values, in words.

    Raises:
        FlowError: the value is not allowed.
    """
    if not is_allowed:
        raise FlowError(
            f"{owner} cannot have this {name}: got {name}={value!r}, allowed {allowed}; change it"
        )


def check_member(owner: str, name: str, value: object, kind: type[Enum]) -> None:
    """Refuse a value that is no member of an enumeration.

    Raises:
        FlowError: it is none.
    """
    members = ", ".join(f"{kind.__name__}.{member.name}" for member in kind)
    check(owner, name, value, isinstance(value, kind), f"{members} of {kind.__module__}")


def is_count(value: object, minimum: int = 1) -> bool:
    """True if a value is a whole number of at least the minimum."""
    # bool is a subclass of int.
    return isinstance(value, int) and not isinstance(value, bool) and value >= minimum


def is_number(value: object, minimum: float = 0.0) -> bool:
    """True if a value is a finite number of at least the minimum."""
    is_real = isinstance(value, int | float) and not isinstance(value, bool)
    return is_real and isfinite(value) and value >= minimum  # type: ignore[arg-type,operator]


def suggest(word: str, names: Iterable[str], otherwise: str) -> str:
    """Advice about a name that is not allowed.

    Returns:
        "did you mean X?" for the nearest allowed name, or the shortest that begins so; `otherwise`
        if no name is near.
    """
    ordered = sorted(names, key=lambda name: (len(name), name))
    # One or two letters begin too many names.
    begun = (name for name in ordered if len(word) > 2 and name.startswith(word))
    near = nearest(word, ordered) or next(begun, "")
    return f"did you mean {near}?" if near else otherwise


def checked_call(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a method to refuse wrong arguments as a FlowError."""
    # A TypeError would reach the user as a fault of the step, without what is allowed.
    expected = signature(function)

    @wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        _check_arguments(f"{type(args[0]).__name__}.{function.__name__}", expected, args, kwargs)
        return function(*args, **kwargs)

    return checked


def checked_settings(kind: type[T]) -> type[T]:
    """Decorate a dataclass whose constructor is to refuse wrong arguments as a FlowError."""
    # Dataclasses generate the constructor, so it is replaced afterwards.
    build = kind.__init__
    expected = signature(build)

    @wraps(build)
    def checked(self: T, *args: object, **kwargs: object) -> None:
        _check_arguments(kind.__name__, expected, (self, *args), kwargs)
        build(self, *args, **kwargs)

    kind.__init__ = checked  # type: ignore[method-assign,assignment]
    return kind


def _check_arguments(
    name: str, expected: Signature, args: tuple[object, ...], kwargs: dict[str, object]
) -> None:
    try:
        expected.bind(*args, **kwargs)
    except TypeError as error:
        # The first parameter is self.
        parameters = list(expected.parameters.values())[1:]
        names = [parameter.name for parameter in parameters]
        unknown = next((argument for argument in kwargs if argument not in names), None)
        got = str(error) if unknown is None else f"{unknown}={kwargs[unknown]!r}"
        advice = "correct them" if unknown is None else suggest(unknown, names, "remove it")
        raise FlowError(
            f"{name} does not take these arguments: got {got}, allowed "
            f"{', '.join(map(_spelled, parameters)) or 'none'}; {advice}"
        ) from None


def _spelled(parameter: Parameter) -> str:
    """Spell a parameter for a message: batch, *operations, samples=."""
    if parameter.kind is Parameter.VAR_POSITIONAL:
        return f"*{parameter.name}"
    return parameter.name + ("" if parameter.default is Parameter.empty else "=")
