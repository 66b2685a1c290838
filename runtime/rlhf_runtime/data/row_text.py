"""What one row says: its prompt as text, its reference answer, its record as JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any

from rlhf_api.spec.data import ChatTemplate as TemplateUse
from rlhf_api.spec.data import DataSource
from rlhf_runtime.data.chat import ChatTemplate, Message, TemplateRefusal
from rlhf_runtime.data.errors import ChatTemplateUnusable
from rlhf_runtime.data.rows import Row, Split

DEFAULT_ANSWER_FIELD = "answer"


class RowProblem(Exception):
    """Why a row cannot be used; the text continues `row N: `."""


class PromptWriter:
    """Writes the prompts of one source.

    is_templated: whether prompts pass through the chat template, which then writes the tokenizer's
        special tokens itself.
    """

    def __init__(self, source: DataSource, split: Split, template: ChatTemplate | None) -> None:
        """Choose how prompts are written.

        Raises:
            ChatTemplateUnusable: the source needs a template and the tokenizer has none.
        """
        self._field = source.prompt_field
        self._system = source.system_prompt
        self._split = split
        wanted = source.chat_template
        self._template = None if wanted is TemplateUse.NEVER else template
        self.is_templated = self._template is not None
        self._takes_messages = wanted is not TemplateUse.NEVER
        if self._template is None and wanted is TemplateUse.ALWAYS:
            raise self._no_template("chatTemplate is always")
        if self._template is None and self._system is not None:
            raise self._no_template("systemPrompt is set")

    def write(self, prompt: Any) -> str:
        """The prompt's text, from a text or a list of messages.

        Raises:
            RowProblem: it is no usable prompt.
            ChatTemplateUnusable: messages, and no template to write them with.
        """
        if isinstance(prompt, list) and self._takes_messages:
            written = self._from_messages(messages_of(prompt, self._field))
            return checked_text(written, self._field)
        text = checked_text(prompt, self._field)
        if self._template is None:
            return text
        return self._from_messages([{"role": "user", "content": text}])

    def write_answered(self, prompt: Any, answer: str) -> str:
        """The text of a prompt with the assistant's answer, by the template.

        Raises:
            RowProblem: it is no usable prompt.
            ChatTemplateUnusable: there is no template.
        """
        if isinstance(prompt, list):
            return self._from_messages(messages_of(prompt, self._field), answer)
        text = checked_text(prompt, self._field)
        return self._from_messages([{"role": "user", "content": text}], answer)

    def _from_messages(self, messages: list[Message], answer: str | None = None) -> str:
        if self._template is None:
            raise self._no_template(f"{self._field} holds messages")
        if self._system is not None:
            if messages[0]["role"] == "system":
                raise RowProblem(
                    f"{self._field} begins with its own system message beside systemPrompt"
                )
            messages = [{"role": "system", "content": self._system}, *messages]
        if answer is not None:
            messages = [*messages, {"role": "assistant", "content": answer}]
        try:
            return self._template.render(messages, is_answered=answer is not None)
        except TemplateRefusal as refusal:
            raise RowProblem(f"the chat template refuses {self._field}: {refusal}") from refusal

    def _no_template(self, why: str) -> ChatTemplateUnusable:
        setting = f"data.{self._split.value}"
        return ChatTemplateUnusable(
            f"{setting} needs a chat template and has none to use: {why}, got chatTemplate "
            "Never or a tokenizer without template; use a chat model's tokenizer, put "
            f"chat_template.jinja into the model's folder, or give {setting} plain text prompts "
            "with chatTemplate: Never and no systemPrompt"
        )


def prompt_of(row: Row, field: str) -> Any:
    """What the prompt's column holds.

    Raises:
        RowProblem: the row has no such column.
    """
    if field not in row:
        raise RowProblem(f"no field {field}")
    return row[field]


def answer_text(row: Row, field: str | None) -> str | None:
    """The reference answer as text; None where the row has none.

    field: data.*.answerField; a row then must have an answer. None: the field `answer`, if it holds
        a text or a number.

    Raises:
        RowProblem: the named field holds no usable answer.
    """
    value = row.get(DEFAULT_ANSWER_FIELD if field is None else field)
    if isinstance(value, str) and value.strip() and _is_unicode(value):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return str(int(value)) if value == int(value) else repr(value)
    if field is not None:
        raise RowProblem(f"{field} is {_describe(value)}; allowed an answer as text or number")
    return None


def record_json(row: Row) -> str:
    """The whole row as a JSON object.

    Raises:
        RowProblem: a number that is NaN or infinite, or a value that JSON cannot express.
    """
    try:
        return json.dumps(row, allow_nan=False, default=_json_value)
    except (TypeError, ValueError) as error:
        column = next((name for name, value in row.items() if not _is_json(value)), "a field")
        raise RowProblem(
            f"{column} holds a value that a verifier cannot be given ({error}); "
            "use null for what is missing"
        ) from error


def checked_text(value: Any, field: str) -> str:
    """A text that says something.

    Raises:
        RowProblem: it is none.
    """
    if not isinstance(value, str) or not value.strip() or not _is_unicode(value):
        raise RowProblem(f"{field} is {_describe(value)}")
    return value


def messages_of(value: Sequence[Any], field: str) -> list[Message]:
    """Messages without the empty fields that columnar files add.

    Raises:
        RowProblem: no messages.
    """
    if not value:
        raise RowProblem(f"{field} is an empty list of messages")
    messages: list[Message] = []
    for item in value:
        if not isinstance(item, Mapping):
            raise RowProblem(f"{field} holds {_describe(item)} instead of a message")
        message = {name: part for name, part in item.items() if part is not None}
        for part in ("role", "content"):
            if not isinstance(message.get(part), str):
                raise RowProblem(f"{field} has a message whose {part} is not a text")
        messages.append(message)
    return messages


def _describe(value: Any) -> str:
    """A value's kind in words."""
    if value is None:
        return "null or missing"
    if isinstance(value, str):
        if not value.strip():
            return "an empty text"
        return "a text" if _is_unicode(value) else "not valid Unicode"
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "infinite"
    return f"of type {type(value).__name__}"


def _is_unicode(text: str) -> bool:
    """Whether a text can be encoded; JSON can smuggle in halves of surrogate pairs."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_json(value: Any) -> bool:
    try:
        json.dumps(value, allow_nan=False, default=_json_value)
    except (TypeError, ValueError):
        return False
    return True


def _json_value(value: Any) -> str:
    """Dates, times and decimals, which columnar files have and JSON has not, as text."""
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, Decimal):
        return str(value)
    raise TypeError(f"{type(value).__name__} is no JSON value")
