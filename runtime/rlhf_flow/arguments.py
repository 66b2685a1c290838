"""Arguments that a function does not take are refused by name, with those that it takes."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import Parameter, Signature, signature
from typing import ParamSpec, TypeVar

from rlhf_flow.checks import suggest
from rlhf_flow.errors import FlowError

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
