"""Parses rows: prompts as text, reference answers, preference pairs, records as JSON."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from itertools import takewhile
from typing import Any

from rlhf_api.spec.data import ChatTemplate as TemplateUse
from rlhf_api.spec.data import DataSource, PreferenceFields
from rlhf_runtime.data.chat import ChatTemplate, Message, TemplateRefusal
from rlhf_runtime.data.errors import ChatTemplateUnusable
from rlhf_runtime.data.rows import Row, Split
from rlhf_runtime.row_values import answer_texts, field_value, has_field

DEFAULT_ANSWER_FIELD = "answer"


class RowProblem(Exception):
    """The row is unusable; the text continues `row N: `."""


class PromptWriter:
    """Renders the prompts of one source as text.

    is_templated: True if prompts pass through the chat template, which then writes the tokenizer's
        special tokens itself.
    """

    def __init__(self, source: DataSource, split: Split, template: ChatTemplate | None) -> None:
        """Choose the form of prompts.

        Raises:
            ChatTemplateUnusable: the source needs a template and the tokenizer has none.
        """
        self._field = source.prompt_field
        self._system = source.system_prompt
        self._split = split
        requested = source.chat_template
        self._template = None if requested is TemplateUse.NEVER else template
        self.is_templated = self._template is not None
        self._accepts_messages = requested is not TemplateUse.NEVER
        if self._template is None and requested is TemplateUse.ALWAYS:
            raise self._no_template("chatTemplate is always")
        if self._template is None and self._system is not None:
            raise self._no_template("systemPrompt is set")

    def write(self, prompt: Any) -> str:
        """Render a prompt, a text or a list of messages.

        Raises:
            RowProblem: the prompt is unusable.
            ChatTemplateUnusable: the prompt has messages, and there is no template.
        """
        if isinstance(prompt, list) and self._accepts_messages:
            written = self._from_messages(parse_messages(prompt, self._field))
            return checked_text(written, self._field)
        text = checked_text(prompt, self._field)
        if self._template is None:
            return text
        return self._from_messages([{"role": "user", "content": text}])

    def write_answered(self, prompt: Any, answer: str) -> str:
        """Render a prompt with the assistant's answer by the template.

        Raises:
            RowProblem: the prompt is unusable.
            ChatTemplateUnusable: there is no template.
        """
        if isinstance(prompt, list):
            return self._from_messages(parse_messages(prompt, self._field), answer)
        text = checked_text(prompt, self._field)
        return self._from_messages([{"role": "user", "content": text}], answer)

    def write_closed(self, prompt: Any, answer: str, ends: Sequence[str]) -> str:
        """Render a prompt with the assistant's answer by the template, up to the first end token
        behind the answer; with the first of `ends` if the template writes none.

        Args:
            prompt: a text or a list of messages.
            answer: its answer.
            ends: texts of the end tokens.

        Raises:
            RowProblem: the prompt is unusable, or the template renders it in another way if an
                answer follows.
            ChatTemplateUnusable: there is no template.
        """
        begin, text = self.write(prompt), self.write_answered(prompt, answer)
        if not text.startswith(begin):
            raise RowProblem(
                f"the chat template renders {self._field} in another way if an answer follows: got "
                f"{text[: len(begin)][-60:]!r} instead of {begin[-60:]!r}; choose another template"
            )
        # A template may strip the answer, or write something before it.
        core = answer.strip()
        behind = max(text.rfind(core), len(begin)) + len(core)
        matches = [(at, end) for end in ends if (at := text.find(end, behind)) >= 0]
        if not matches:
            return text[:behind] + ends[0]
        at, end = min(matches)
        return text[:at] + end

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


def prompt_value(row: Row, field: str) -> Any:
    """Return the value of the prompt's column.

    Raises:
        RowProblem: the row has no such column.
    """
    try:
        return field_value(row, field)
    except KeyError:
        raise RowProblem(f"no field {field}") from None


def answer_text(row: Row, field: str | None) -> str | None:
    """Return the reference answer as text; None if the row has none.

    The answer is a text, a number, the first item of a list of these, or a list with one message of
    the assistant.

    field: data.*.answerField; every row must then have an answer. None: the field `answer`, if it
        holds an answer.

    Raises:
        RowProblem: the named field has no usable answer.
    """
    name = DEFAULT_ANSWER_FIELD if field is None else field
    value = field_value(row, name) if has_field(row, name) else None
    try:
        if isinstance(value, list) and value and isinstance(value[0], Mapping):
            return _last_message(parse_messages(value, name), name)
        return checked_text(answer_texts(value)[0], name)
    except (RowProblem, ValueError) as problem:
        if field is None:
            return None
        if isinstance(problem, RowProblem):
            raise
        raise RowProblem(
            f"{field} is {_describe(value)}; allowed an answer as text, number, a list of these, "
            "or a list with one message of the assistant"
        ) from problem


def prompt_and_answer(row: Row, source: DataSource) -> tuple[Any, str | None]:
    """Return a row's prompt, and its reference answer as text or None.

    A conversation that ends with a message of the assistant is a prompt with its answer, unless the
    row has another answer.

    Raises:
        RowProblem: the row has no prompt, or no usable answer in the field that the source names.
    """
    field = source.prompt_field
    prompt, answer = prompt_value(row, field), answer_text(row, source.answer_field)
    if not isinstance(prompt, list) or len(prompt) < 2:
        return prompt, answer
    *before, last = parse_messages(prompt, field)
    if last["role"] != "assistant":
        return prompt, answer
    return before, checked_text(last["content"], field) if answer is None else answer


def record_json(row: Row) -> str:
    """Return the complete row as a JSON object.

    Dates, times and decimals become texts, bytes base64. NaN and infinite numbers become null: in
    columnar files they stand for missing values.

    Raises:
        RowProblem: JSON cannot express a value.
    """
    try:
        try:
            return json.dumps(row, allow_nan=False, default=_json_value)
        except ValueError:  # a number that is not finite; such rows are rare
            return json.dumps(_without_nan(row), allow_nan=False, default=_json_value)
    except (TypeError, ValueError) as error:
        column = next((name for name, value in row.items() if not _is_json(value)), "a field")
        raise RowProblem(
            f"{column} holds a value that a verifier cannot receive ({error}); write it as text"
        ) from error


def checked_text(value: Any, field: str) -> str:
    """Return a text that is not blank and valid Unicode.

    Raises:
        RowProblem: the value is no such text.
    """
    if not isinstance(value, str) or not value.strip() or not _is_unicode(value):
        raise RowProblem(f"{field} is {_describe(value)}")
    return value


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
            raise RowProblem(f"{field} holds {_describe(item)} instead of a message")
        # Columnar files give every message all fields, most of them null.
        message = {name: part for name, part in item.items() if part is not None}
        if isinstance(message.get("content"), list):
            message["content"] = _joined_parts(message["content"], field)
        for part in ("role", "content"):
            if not isinstance(message.get(part), str):
                calls = " (it calls tools)" if message.get("tool_calls") else ""
                raise RowProblem(f"{field} has a message whose {part} is not a text{calls}")
        messages.append(message)
    return messages


def _joined_parts(parts: Sequence[Any], field: str) -> str:
    """Return the text of a message's parts.

    Raises:
        RowProblem: a part is no text.
    """
    texts = []
    for part in parts:
        kind = part.get("type", "text") if isinstance(part, Mapping) else type(part).__name__
        if kind != "text" or not isinstance(part.get("text"), str):
            raise RowProblem(f"{field} has a message with a part of type {kind}; allowed text")
        texts.append(part["text"])
    return "".join(texts)


def _describe(value: Any) -> str:
    """Describe a value's kind."""
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
    """True if a text can be encoded."""
    # JSON escapes can produce unpaired surrogates.
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _without_nan(value: Any) -> Any:
    """Replace numbers that are not finite by None, at any depth."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {name: _without_nan(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(part) for part in value]
    return value


def _is_json(value: Any) -> bool:
    try:
        json.dumps(_without_nan(value), allow_nan=False, default=_json_value)
    except (TypeError, ValueError):
        return False
    return True


def _json_value(value: Any) -> str:
    """Convert a value that columnar files have and JSON lacks to text."""
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, Decimal | timedelta):
        return str(value)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    raise TypeError(f"{type(value).__name__} is no JSON value")


@dataclass(frozen=True, slots=True)
class Pair:
    """A prompt with two different responses."""

    prompt: Any
    """A text or a list of messages, unchanged."""
    chosen: str
    rejected: str


def parse_pair(row: Row, prompt_field: str, fields: PreferenceFields) -> Pair:
    """Parse the pair of a row.

    Texts answer the prompt of `prompt_field`. Two lists of messages share the prompt and each end
    with one more message of the assistant. If the shared messages have none of the user, the prompt
    of `prompt_field` is inserted after their system messages.

    Raises:
        RowProblem: a response is missing, empty or of another form, or both are equal.
    """
    names = (fields.chosen_field, fields.rejected_field)
    chosen, rejected = (row.get(name) for name in names)
    if isinstance(chosen, list) and isinstance(rejected, list):
        pair = _from_messages(row, prompt_field, names, (chosen, rejected))
    else:
        texts = [checked_text(row.get(name), name) for name in names]
        pair = Pair(prompt_value(row, prompt_field), *texts)
    if pair.chosen == pair.rejected:
        raise RowProblem(f"{names[0]} and {names[1]} are equal")
    return pair


def _from_messages(
    row: Row, prompt_field: str, names: tuple[str, str], lists: tuple[list[Any], list[Any]]
) -> Pair:
    chosen, rejected = (
        parse_messages(messages, name) for messages, name in zip(lists, names, strict=True)
    )
    pairs = zip(chosen[:-1], rejected[:-1], strict=False)
    shared = [one for one, _ in takewhile(lambda pair: pair[0] == pair[1], pairs)]
    answers = [
        _last_message(messages[len(shared) :], name)
        for messages, name in zip((chosen, rejected), names, strict=True)
    ]
    if any(message["role"] == "user" for message in shared):
        return Pair(shared, *answers)
    prompt = prompt_value(row, prompt_field)
    if not isinstance(prompt, list):
        prompt = [{"role": "user", "content": checked_text(prompt, prompt_field)}]
    # System messages stay first: templates refuse them elsewhere.
    systems = list(takewhile(lambda message: message["role"] == "system", shared))
    return Pair([*systems, *prompt, *shared[len(systems) :]], *answers)


def _last_message(rest: list[Message], field: str) -> str:
    if len(rest) != 1 or rest[0]["role"] != "assistant":
        roles = ", ".join(message["role"] for message in rest)
        raise RowProblem(
            f"{field} ends with messages of {roles} after the shared ones; allowed one of the "
            "assistant"
        )
    return checked_text(rest[0]["content"], field)
