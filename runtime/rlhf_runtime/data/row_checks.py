"""Texts and messages of rows."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from rlhf_runtime.data.chat import Message

MAX_ENTRIES = 8
"""Entries of a map that a message names."""
# Parts of a message that are not trained on.
_TOOL_CALLS = ("tool_calls", "function_call")
_UNTRAINED_PARTS = ("reasoning_content", "reasoning", "thinking", *_TOOL_CALLS)
# Names by which other programs mark answers to train on; `weight` is OpenAI's.
_TRAINING_MARKS = ("train", "training")
# Roles of tools in chat templates.
_TOOL_ROLES = frozenset({"tool", "function", "ipython"})


_MESSAGES_AS_TEXT = re.compile(r"""\s*\[\s*\{\s*['"](role|content|from|value)['"]\s*:""")


class RowProblem(Exception):
    """The row is unusable; the text continues `row N: `."""


def checked_text(value: Any, field: str) -> str:
    """Return a text that is not blank and valid Unicode.

    Raises:
        RowProblem: the value is no such text.
    """
    if not isinstance(value, str) or not value.strip() or not _is_unicode(value):
        raise RowProblem(f"{field} is {describe(value)}")
    return value


def checked_prompt(value: Any, field: str) -> str:
    """Return the text of a prompt.

    Raises:
        RowProblem: the value is no text, or one that holds a list of messages.
    """
    text = checked_text(value, field)
    # Tables often store messages in this way. As a text they would be trained on, braces and all.
    if _MESSAGES_AS_TEXT.match(text):
        raise RowProblem(
            f"{field} is a text that holds a list of messages; allowed the list itself: parse the "
            "text in your data, by json.loads if it is JSON"
        )
    return text


def parse_messages(value: Sequence[Any], field: str) -> list[Message]:
    """Return messages without the empty fields that columnar files add.

    Raises:
        RowProblem: the value is no list of messages.
    """
    if not value:
        raise RowProblem(f"{field} is an empty list of messages")
    messages: list[Message] = []
    for item in value:
        if not isinstance(item, Mapping):
            raise RowProblem(f"{field} holds {describe(item)} instead of a message")
        # Columnar files give every message all fields, most of them null.
        message = {name: part for name, part in item.items() if part is not None}
        if "role" not in item or ("content" not in item and not message.get("tool_calls")):
            raise RowProblem(
                f"{field} has a message with the entries {', '.join(map(str, item)) or 'none'}; "
                "allowed role and content, both texts: rename them in your data"
            )
        if isinstance(message.get("content"), list):
            message["content"] = _joined_parts(message["content"], field)
        for part in ("role", "content"):
            if not isinstance(message.get(part), str):
                calls = " (it calls tools)" if message.get("tool_calls") else ""
                raise RowProblem(f"{field} has a message whose {part} is not a text{calls}")
            if not _is_unicode(message[part]):
                raise RowProblem(f"{field} has a message whose {part} is not valid Unicode")
        messages.append(message)
    return messages


def prompt_messages(value: Sequence[Any], field: str) -> list[Message]:
    """Return the messages of a prompt; see `parse_messages`.

    Raises:
        RowProblem: the value is no list of messages, or there is nothing to answer.
    """
    messages = parse_messages(value, field)
    # An empty answer of a tool says something, and empty messages of the system do no harm.
    if messages[-1]["role"] == "user" and not messages[-1]["content"].strip():
        raise RowProblem(f"{field} has an empty message of user before an answer")
    return messages


def _joined_parts(parts: Sequence[Any], field: str) -> str:
    """Return the text of a message's parts.

    Raises:
        RowProblem: a part is no text.
    """
    texts = []
    for part in parts:
        kind = part.get("type") or "text" if isinstance(part, Mapping) else type(part).__name__
        if kind != "text" or not isinstance(part.get("text"), str):
            raise RowProblem(f"{field} has a message with a part of type {kind}; allowed text")
        texts.append(part["text"])
    return "".join(texts)


def describe(value: Any) -> str:
    """Describe a value's kind."""
    if value is None:
        return "null or missing"
    if isinstance(value, str):
        if not value.strip():
            return "an empty text"
        return "a text" if _is_unicode(value) else "not valid Unicode"
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "infinite"
    if isinstance(value, Mapping):
        entries = ", ".join(str(name) for name in list(value)[:MAX_ENTRIES]) or "none"
        return f"a map; name one of its entries behind a dot: {entries}"
    return f"of type {type(value).__name__}"


def _is_unicode(text: str) -> bool:
    """True if a text can be encoded."""
    # JSON escapes can produce unpaired surrogates.
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def require_no_tools(messages: Sequence[Message], field: str) -> None:
    """Refuse a conversation with tools, which cannot be trained on.

    Raises:
        RowProblem: a message is a tool's, or calls one.
    """
    allowed = "allowed conversations without tools; remove the row, or its messages of tools"
    for message in messages:
        if message["role"] in _TOOL_ROLES:
            raise RowProblem(f"{field} has a message of role {message['role']}; {allowed}")
        if calls := [name for name in _TOOL_CALLS if message.get(name)]:
            raise RowProblem(f"{field} has a message with {calls[0]}; {allowed}")


def is_trained_on(message: Message, field: str) -> bool:
    """True if an answer's weight is 1, or it has none.

    Raises:
        RowProblem: the weight is neither 0 nor 1, or the message is marked in another way.
    """
    for name in _TRAINING_MARKS:
        if isinstance(message.get(name), bool):
            raise RowProblem(
                f"{field} has a message with {name}, which is not read; allowed weight: 0 for an "
                "answer that is not trained on"
            )
    weight = message.get("weight", 1)
    if weight not in (0, 1):
        raise RowProblem(f"{field} has a message with weight {weight!r}; allowed 0 or 1")
    return bool(weight)


def last_answer(rest: list[Message], field: str) -> Message:
    """Return the only message, which the assistant must have written.

    Raises:
        RowProblem: there are several messages or none, or it is not the assistant's.
    """
    if len(rest) != 1 or rest[0]["role"] != "assistant":
        roles = ", ".join(message["role"] for message in rest)
        raise RowProblem(
            f"{field} ends with messages of {roles} after the shared ones; allowed one of the "
            "assistant, or several messages that begin and end with one, with trainOn: AllAnswers"
        )
    answer_of(rest[0], field)
    return rest[0]


def answer_of(message: Message, field: str, title: str = "") -> str:
    """Return the text of an assistant's message that is trained on.

    Args:
        message: of the assistant.
        field: column of the conversation.
        title: of the message, for an error. Default: the last message of the field.

    Raises:
        RowProblem: the message has no text, or has other parts that training would leave out.
    """
    if parts := [name for name in _UNTRAINED_PARTS if message.get(name)]:
        raise RowProblem(
            f"{field} has a message that has {parts[0]}, which is not trained on; put it into the "
            "content, or remove it"
        )
    return checked_text(message["content"], title or f"the last message of {field}")
