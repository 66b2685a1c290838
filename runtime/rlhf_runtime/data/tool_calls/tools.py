"""The tools of a job: their schemas, and the one check of calls in all formats."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from rlhf_runtime.data.errors import ToolsUnusable
from rlhf_runtime.data.tool_calls.arguments import fitting_arguments
from rlhf_runtime.data.tool_calls.json_values import (
    CallProblem,
    checked_value,
    decode_json,
    quoted,
)
from rlhf_runtime.environments.tool_call import MalformedCall, ToolCall
from rlhf_runtime.environments.tool_schema import ToolSchema

MAX_CALL_CHARACTERS = 1_000_000
_SHOWN_CHARACTERS = 1000


class WrittenCall(NamedTuple):
    """A call as a format reads it, not checked yet."""

    text: str
    """All that the model wrote for it."""
    name: Any
    """The tool's name."""
    arguments: Any
    """Values by names of parameters; or a text, which is the JSON of them."""
    id: Any = ""


WrittenCalls = Iterator[WrittenCall | MalformedCall]
"""The calls of a text in their order."""


class Tools:
    """The tools that a model may call.

    schemas: of all tools, in their order.
    """

    def __init__(self, schemas: Sequence[ToolSchema]) -> None:
        """Read the names and parameters of tools.

        Raises:
            ToolsUnusable: there is no tool, a schema has another form, or two have one name.
        """
        self.schemas = [dict(schema) for schema in schemas]
        self._parameters: dict[str, Mapping[str, Any]] = {}
        for schema in self.schemas:
            name, parameters = _name_and_parameters(schema)
            if name in self._parameters:
                raise ToolsUnusable(
                    f"two tools have one name: got {name} twice, allowed different names; rename "
                    "one of the functions"
                )
            self._parameters[name] = parameters
        if not self._parameters:
            raise ToolsUnusable(
                "no tools: got an empty list, allowed one tool or more; give the environment a "
                "public method, or set tools"
            )

    @property
    def names(self) -> list[str]:
        """The names of all tools."""
        return list(self._parameters)

    def parameter_names(self, name: str) -> list[str]:
        """Return the names of a tool's parameters, in the order of its schema."""
        return list(self._parameters[name].get("properties", {}))

    def checked(self, call: WrittenCall) -> ToolCall | MalformedCall:
        """Return the call with arguments as the tool's schema wants them; malformed if the tool or
        an argument is unknown, an argument is missing, or a value does not fit."""
        name = call.name if isinstance(call.name, str) else ""
        id = call.id if isinstance(call.id, str) else ""
        try:
            arguments = self._checked_arguments(call)
        except CallProblem as problem:
            tool = name if name in self._parameters else ""
            prefix = f"{tool}: " if tool else ""
            return MalformedCall(call.text[:_SHOWN_CHARACTERS], f"{prefix}{problem}", tool, id)
        return ToolCall(name, arguments, id)

    def _checked_arguments(self, call: WrittenCall) -> dict[str, Any]:
        if len(call.text) > MAX_CALL_CHARACTERS:
            raise CallProblem(f"a call has at most {MAX_CALL_CHARACTERS} characters")
        # Compared first: any JSON value may stand where the name must be.
        if not isinstance(call.name, str) or call.name not in self._parameters:
            names = ", ".join(self._parameters)
            raise CallProblem(f"no tool is called {quoted(call.name)}; the tools are: {names}")
        arguments, end = call.arguments, 0
        # Some templates write the arguments as a text of JSON.
        if isinstance(arguments, str):
            arguments, end = decode_json(call.arguments)
            if end < len(call.arguments):
                raise CallProblem("text behind the json object of the arguments")
        if not isinstance(arguments, Mapping):
            raise CallProblem(f"the arguments must be an object, got {quoted(arguments)}")
        try:
            return fitting_arguments(checked_value(arguments), self._parameters[call.name])
        except RecursionError as error:
            raise CallProblem("the arguments are too deep") from error


def malformed(text: str, problem: str) -> MalformedCall:
    """Return a malformed call whose name cannot be read.

    Args:
        text: as the model wrote it.
        problem: in plain words, for the model.
    """
    return MalformedCall(text[:_SHOWN_CHARACTERS], problem)


def _name_and_parameters(schema: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    function = schema.get("function")
    name = function.get("name") if isinstance(function, Mapping) else None
    parameters = function.get("parameters", {}) if isinstance(function, Mapping) else None
    if (
        not isinstance(name, str)
        or not name
        or not isinstance(parameters, Mapping)
        or parameters.get("type", "object") != "object"
        or not isinstance(parameters.get("properties", {}), Mapping)
    ):
        raise ToolsUnusable(
            f"a tool's schema has another form: got {quoted(schema)}, allowed "
            '{"type": "function", "function": {"name": ..., "description": ..., "parameters": {a '
            "JSON schema of an object}}; give the function type hints and a docstring"
        )
    return name, parameters
