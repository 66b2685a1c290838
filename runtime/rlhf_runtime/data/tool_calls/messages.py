"""Messages of a turn with calls, in the form that chat templates read."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlhf_runtime.environments.tool_call import MalformedCall, ToolCall

Call = ToolCall | MalformedCall

UNKNOWN_NAME = "unknown"
"""Stands for the name of a tool that cannot be read."""
# Templates of Mistral refuse ids of another length.
_ID_CHARACTERS = 9


@dataclass(frozen=True, slots=True)
class MessageForm:
    """The form in which a template accepts the assistant's message with calls.

    Some templates append the arguments to a text, others convert them to JSON themselves; some want
    no content beside calls.
    """

    content: str | None
    """The message's text if the model wrote nothing beside the calls."""
    arguments: Callable[[Mapping[str, Any]], Any]
    """Converts the arguments."""
    single_call: bool = False
    """True if the template accepts one call in a message."""


def _json_text(arguments: Mapping[str, Any]) -> str:
    return json.dumps(arguments, ensure_ascii=False)


MESSAGE_FORMS = tuple(
    MessageForm(content, arguments) for arguments in (dict, _json_text) for content in ("", None)
)
"""All forms, in the order of their trial."""


def call_id(call: Call, number: int) -> str:
    """Return the id of a call: the model's, if templates accept it, else one that follows from the
    position of the call in its turn.

    Args:
        call: of a turn.
        number: of the call in the turn, from 0.
    """
    id = call.id
    is_usable = len(id) == _ID_CHARACTERS and id.isascii() and id.isalnum()
    return id if is_usable else f"call{number:05d}"


def turn_messages(
    calls: Sequence[Call], answers: Sequence[str], form: MessageForm
) -> list[Mapping[str, Any]]:
    """Return the assistant's message with calls, and one message of a tool for every answer.

    Args:
        calls: of the turn, at least one; malformed ones have no arguments.
        answers: one for every call.
        form: of the assistant's message.
    """
    named = [(call.name or UNKNOWN_NAME, call_id(call, n)) for n, call in enumerate(calls)]
    written = [
        {
            "id": id,
            "type": "function",
            "function": {"name": name, "arguments": form.arguments(_arguments(call))},
        }
        for call, (name, id) in zip(calls, named, strict=True)
    ]
    message: dict[str, Any] = {
        "role": "assistant",
        "content": form.content,
        "tool_calls": written[:1] if form.single_call else written,
    }
    tools = [
        {"role": "tool", "name": name, "tool_call_id": id, "content": answer}
        for (name, id), answer in zip(named, answers, strict=True)
    ]
    return [message, *tools]


def _arguments(call: Call) -> Mapping[str, Any]:
    return call.arguments if isinstance(call, ToolCall) else {}
