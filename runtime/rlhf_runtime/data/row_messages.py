"""Messages of rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rlhf_runtime.data.chat import Message
from rlhf_runtime.data.row_calls import CALLS, checked_calls, with_ids
from rlhf_runtime.data.row_checks import RowProblem, checked_text, describe, is_unicode

ASSISTANT = "assistant"
Response = tuple[Message, ...]
"""Messages of which the first and the last are the assistant's."""

# Parts of a message that are not trained on. The last one is the older form of tool_calls.
_UNTRAINED_PARTS = ("reasoning_content", "reasoning", "thinking", "function_call")
# Names by which other programs mark answers to train on; `weight` is OpenAI's.
_TRAINING_MARKS = ("train", "training")


def answer_message(text: str) -> Message:
    """Return an answer as a message of the assistant."""
    return {"role": ASSISTANT, "content": text}


def parse_messages(value: Sequence[Any], field: str) -> list[Message]:
    """Return messages without the empty fields that columnar files add.

    Calls of the assistant are in one form, see `checked_calls` and `with_ids`; beside calls the
    content may be missing, and is then empty.

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
        if message.get("role") == ASSISTANT and CALLS in message:
            calls = checked_calls(message.pop(CALLS), field)
            # Some templates ask whether the entry exists.
            message |= {CALLS: calls, "content": message.get("content", "")} if calls else {}
        if "role" not in item or ("content" not in item and "content" not in message):
            raise RowProblem(
                f"{field} has a message with the entries {', '.join(map(str, item)) or 'none'}; "
                "allowed role and content, both texts: rename them in your data"
            )
        if isinstance(message.get("content"), list):
            message["content"] = _joined_parts(message["content"], field)
        for part in ("role", "content"):
            if not isinstance(message.get(part), str):
                raise RowProblem(f"{field} has a message whose {part} is not a text")
            if not is_unicode(message[part]):
                raise RowProblem(f"{field} has a message whose {part} is not valid Unicode")
        messages.append(message)
    return with_ids(messages)


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
    if len(rest) != 1 or rest[0]["role"] != ASSISTANT:
        roles = ", ".join(message["role"] for message in rest)
        raise RowProblem(
            f"{field} ends with messages of {roles} after the shared ones; allowed one of the "
            "assistant, or several messages that begin and end with one, with trainOn: AllAnswers"
        )
    answer_of(rest[0], field)
    return rest[0]


def answer_of(message: Message, field: str, title: str = "") -> str:
    """Return the text of an assistant's message that is trained on; empty if it only calls tools.

    Args:
        message: of the assistant.
        field: column of the conversation.
        title: of the message, for an error. Default: the last message of the field.

    Raises:
        RowProblem: the message has neither text nor calls, or has other parts that training would
            leave out.
    """
    if parts := [name for name in _UNTRAINED_PARTS if message.get(name)]:
        other = CALLS if parts[0] == "function_call" else "the content"
        raise RowProblem(
            f"{field} has a message that has {parts[0]}, which is not trained on; put it into "
            f"{other}, or remove it"
        )
    content: str = message["content"]
    if message.get(CALLS) and not content.strip():
        return content
    return checked_text(content, title or f"the last message of {field}")
