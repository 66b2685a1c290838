"""Tools made from functions: schemas in OpenAI's form, and checks of a call's arguments.

Standard library only.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, get_type_hints

from rlhf_api.entrypoint import deferred_kind
from rlhf_runtime.environments.docstrings import parse_docstring
from rlhf_runtime.environments.side_effects import has_side_effects
from rlhf_runtime.environments.type_hints import (
    SUPPORTED,
    DoesNotFit,
    Hint,
    UnsupportedHint,
    hint_of,
)

ToolSchema = Mapping[str, Any]
"""A tool in OpenAI's form: {"type": "function", "function": {name, description, parameters}};
parameters is a JSON schema of an object."""

# Limit of a value in an error text.
_SHOWN_CHARACTERS = 80


class BadTool(Exception):
    """A function that cannot be a tool; the text says what, got, allowed and do."""


class BadArguments(Exception):
    """Arguments that do not fit a tool; the text is shown to the model."""


@dataclass(frozen=True)
class Tool:
    """A function that the model can call.

    hints: of the arguments, by name.
    required: names of the arguments without a default.
    repeats: True if its calls may be made again when a conversation is rebuilt.
    """

    name: str
    schema: ToolSchema
    hints: Mapping[str, Hint]
    required: frozenset[str]
    repeats: bool

    def convert(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Convert JSON arguments to the hinted types.

        Raises:
            BadArguments: one is missing, unknown or of another type.
        """
        allowed = ", ".join(self.hints) or "none"
        if unknown := [name for name in arguments if name not in self.hints]:
            raise BadArguments(f"{self.name} has no argument {unknown[0]}; allowed: {allowed}")
        if missing := [name for name in self.hints if name in self.required - set(arguments)]:
            raise BadArguments(f"{self.name} needs the argument {missing[0]}")
        converted = {}
        for name, value in arguments.items():
            hint = self.hints[name]
            try:
                converted[name] = hint.convert(value)
            except (DoesNotFit, RecursionError):
                got = json.dumps(value)[:_SHOWN_CHARACTERS]
                raise BadArguments(
                    f"argument {name} of {self.name}: got {got}, allowed {hint.words}"
                ) from None
        return converted


def make_tool(
    function: Callable[..., Any], name: str, title: str, is_method: bool, is_bound: bool = False
) -> Tool:
    """Make a tool from a function's hints and docstring.

    Args:
        function: of the user.
        name: of the tool, by which it is looked up; a decorator may have renamed the function.
        title: of the function, for messages.
        is_method: True if it belongs to an environment, whose state it may change.
        is_bound: True if a method has no first parameter for the object.

    Raises:
        BadTool: it cannot be a tool.
    """
    if "generator" in (kind := deferred_kind(function)):
        raise BadTool(
            f"{title} cannot be a tool: got {kind}, allowed a function or an async function; "
            "return one text"
        )
    parameters = list(inspect.signature(function).parameters.values())
    if is_method and not is_bound:
        parameters = parameters[1:]
    annotations = _annotations(function, title)
    hints = {one.name: _hint(one, annotations, title) for one in parameters}
    text = parse_docstring(inspect.getdoc(function) or "")
    if not text.description:
        raise BadTool(
            f"{title} has no description: got no docstring, allowed a Google-style docstring, "
            "which the model reads; write what the tool does" + _private_advice(is_method)
        )
    if unknown := [name for name in text.arguments if name not in hints]:
        raise BadTool(
            f"the docstring of {title} describes an argument that it does not have: got "
            f"{unknown[0]}, allowed {', '.join(hints) or 'none'}; correct the name"
        )
    required = [one.name for one in parameters if one.default is inspect.Parameter.empty]
    properties = {name: _property(hint, text.arguments.get(name)) for name, hint in hints.items()}
    schema: dict[str, Any] = {"type": "object", "properties": properties}
    if required:
        schema["required"] = required
    content = {"name": name, "description": text.description, "parameters": schema}
    # Functions have no state that would have to be made again.
    repeats = is_method and not has_side_effects(function)
    outer = {"type": "function", "function": content}
    return Tool(name, outer, hints, frozenset(required), repeats)


def _annotations(function: Callable[..., Any], title: str) -> Mapping[str, Any]:
    try:
        return get_type_hints(function)
    except Exception as error:  # evaluates the user's expressions
        raise BadTool(
            f"the type hints of {title} cannot be read: got {type(error).__name__}: {error}, "
            "allowed names that its module has when it runs; import them outside of TYPE_CHECKING"
        ) from None


def _hint(parameter: inspect.Parameter, annotations: Mapping[str, Any], title: str) -> Hint:
    name = parameter.name
    if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
        raise BadTool(
            f"{title} takes any arguments: got {parameter}, allowed named arguments with type "
            "hints, so that the model knows them; name each one"
        )
    if parameter.kind is parameter.POSITIONAL_ONLY:
        raise BadTool(
            f"the argument {name} of {title} has no name for callers: got a positional-only one, "
            "allowed named arguments, because the model names them; remove the / of its signature"
        )
    if name not in annotations:
        raise BadTool(
            f"the argument {name} of {title} has no type hint: got none, allowed {SUPPORTED}; add "
            f"one, such as {name}: str"
        )
    try:
        return hint_of(annotations[name])
    except UnsupportedHint as error:
        raise BadTool(
            f"the argument {name} of {title} has a type hint without a JSON schema: got {error}, "
            f"allowed {SUPPORTED}; use one of these"
        ) from None


def _private_advice(is_method: bool) -> str:
    return ", or begin its name with _ if the model must not call it" if is_method else ""


def _property(hint: Hint, description: str | None) -> dict[str, Any]:
    return {**hint.schema, **({"description": description} if description else {})}
