"""Calls of tools in the messages of rows, and the tools that a row names."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from rlhf_runtime.data.chat import Message
from rlhf_runtime.data.row_checks import RowProblem, describe
from rlhf_runtime.data.tool_calls.messages import MessageForm, call_id
from rlhf_runtime.environments.tool_call import ToolCall
from rlhf_runtime.environments.tool_schema import ToolSchema
from rlhf_runtime.row_values import value_or_none

CALLS = "tool_calls"
TOOL = "tool"
"""Role of a tool's answer."""
TOOLS_FIELD = "tools"
"""Column with the schemas of a row's tools."""

_ALLOWED_CALL = 'allowed {"type": "function", "function": {"name": ..., "arguments": {...}}}'
_ALLOWED_TOOLS = (
    'allowed a list of {"type": "function", "function": {"name": ..., "description": ..., '
    '"parameters": {a JSON schema of an object}}}, or of JSON texts of these; correct it, or '
    "rename the column"
)


def checked_calls(value: Any, field: str) -> list[dict[str, Any]]:
    """Return the calls of a message in OpenAI's form, with the arguments as a text of JSON.

    Entries of a map of arguments that are null, which columnar files add, are left out.

    Args:
        value: of tool_calls.
        field: column of the message, for errors.

    Raises:
        RowProblem: it is no list of calls.
    """
    if not isinstance(value, list | tuple):
        raise RowProblem(
            f"{field} has a message whose {CALLS} is {describe(value)}; allowed a list"
        )
    return [_checked_call(call, field) for call in value]


def _checked_call(call: Any, field: str) -> dict[str, Any]:
    function = call.get("function") or call if isinstance(call, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(name, str) or not name:
        raise RowProblem(
            f"{field} has a message with a call that is {_described(call)}; {_ALLOWED_CALL}"
        )
    arguments = function.get("arguments")
    try:
        # Null in a text was written by somebody.
        if isinstance(arguments, str):
            read = json.loads(arguments)
        else:
            read = _without_null(arguments or {})
        text = json.dumps(read, ensure_ascii=False, allow_nan=False)
        f"{name}{text}".encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise RowProblem(
            f"{field} has a message with a call of {name!r} whose arguments are no JSON ({error})"
        ) from error
    if not isinstance(read, Mapping):
        raise RowProblem(
            f"{field} has a message with a call of {name} whose arguments are {describe(read)}; "
            "allowed a map, by the names of the tool's parameters"
        )
    id = call.get("id")
    return {
        "id": id if isinstance(id, str) else "",
        "type": "function",
        "function": {"name": name, "arguments": text},
    }


def with_ids(messages: Sequence[Message]) -> list[Message]:
    """Return messages whose calls and answers have the ids and names of a generated conversation.

    An answer belongs to the call of the turn before it that has its tool_call_id, else to the call
    at its position. Some templates refuse ids that other programs make.

    Args:
        messages: of a conversation, their calls as `checked_calls` returns them.
    """
    named: list[Message] = []
    calls: Sequence[dict[str, Any]] = ()
    own_ids: list[str] = []
    num_answers = 0
    for message in messages:
        if message["role"] == TOOL:
            id = message.get("tool_call_id")
            index = own_ids.index(id) if id and id in own_ids else num_answers
            num_answers += 1
            if index < len(calls):
                call = calls[index]
                message = {
                    **message,
                    "name": call["function"]["name"],
                    "tool_call_id": call["id"],
                }
        else:
            calls, num_answers = message.get(CALLS) or (), 0
            own_ids = [call["id"] for call in calls]
            calls = [
                {**call, "id": call_id(ToolCall(call["function"]["name"], {}, call["id"]), number)}
                for number, call in enumerate(calls)
            ]
            message = {**message, CALLS: calls} if calls else message
        named.append(message)
    return named


def in_form(message: Message, form: MessageForm) -> Message:
    """Return a message with its calls in the form that a template accepts."""
    if not message.get(CALLS):
        return message
    calls = [
        {
            **call,
            "function": {
                **call["function"],
                "arguments": form.arguments(json.loads(call["function"]["arguments"])),
            },
        }
        for call in message[CALLS]
    ]
    return {**message, "content": message["content"] or form.content, CALLS: calls}


def with_last_arguments(message: Message, arguments: Mapping[str, Any]) -> Message:
    """Return a message whose last call has other arguments."""
    *others, last = message[CALLS]
    function = {**last["function"], "arguments": json.dumps(arguments)}
    return {**message, CALLS: [*others, {**last, "function": function}]}


def row_tools(row: Mapping[str, Any]) -> list[ToolSchema] | None:
    """Return the schemas of the tools that a row names; None if it names none.

    Raises:
        RowProblem: its column `tools` has something else.
    """
    value = value_or_none(row, TOOLS_FIELD)
    if isinstance(value, str):
        value = _parsed(value)
    if value is None or value == []:
        return None
    if not isinstance(value, list | tuple):
        raise RowProblem(f"{TOOLS_FIELD} is {describe(value)}; {_ALLOWED_TOOLS}")
    # Null in a text of JSON was written by somebody, in a map columnar files may have added it.
    schemas = [_parsed(one) if isinstance(one, str) else _without_null(one) for one in value]
    for schema in schemas:
        function = schema.get("function") if isinstance(schema, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise RowProblem(
                f"{TOOLS_FIELD} has an entry that is {_described(schema)}; {_ALLOWED_TOOLS}"
            )
    return schemas


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RowProblem(
            f"{TOOLS_FIELD} has a text that is no JSON ({error}); {_ALLOWED_TOOLS}"
        ) from error


def _described(value: Any) -> str:
    """Describe a value; of a map its entries."""
    if isinstance(value, Mapping):
        return f"a map with the entries {', '.join(map(str, value)) or 'none'}"
    return describe(value)


def _without_null(value: Any) -> Any:
    """Leave out the entries of maps that are null, at any depth."""
    if isinstance(value, Mapping):
        return {name: _without_null(part) for name, part in value.items() if part is not None}
    if isinstance(value, list | tuple):
        return [_without_null(part) for part in value]
    return value
