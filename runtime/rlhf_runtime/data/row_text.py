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
from os.path import commonprefix
from types import MappingProxyType
from typing import Any
from uuid import UUID

from rlhf_api.spec.data import PreferenceFields
from rlhf_api.spec.row_sources import ChatTemplate as TemplateUse
from rlhf_api.spec.row_sources import DataSource, is_template_variable
from rlhf_runtime.data.chat import ChatTemplate, Message, TemplateRefusal
from rlhf_runtime.data.errors import ChatTemplateUnusable
from rlhf_runtime.data.files import Row
from rlhf_runtime.data.row_checks import (
    RowProblem,
    answer_of,
    checked_text,
    describe,
    last_answer,
    parse_messages,
)
from rlhf_runtime.data.source_setting import SourceSetting
from rlhf_runtime.row_values import answer_texts, field_value, value_or_none

DEFAULT_ANSWER_FIELD = "answer"

Arguments = Mapping[str, Any]
"""Arguments of a chat template."""
NO_ARGUMENTS: Arguments = MappingProxyType({})

# Stands for an answer where only the text behind it matters; of a private use area.
ANSWER_MARK = "\ue000answer\ue000"


class PromptWriter:
    """Renders the prompts of one source as text.

    is_templated: True if prompts pass through the chat template, which then writes the tokenizer's
        special tokens itself.
    """

    def __init__(
        self, source: DataSource, setting: SourceSetting, template: ChatTemplate | None
    ) -> None:
        """Choose the form of prompts.

        Raises:
            ChatTemplateUnusable: the source needs a template and the tokenizer has none.
        """
        self._field = source.prompt_field
        self._system = source.system_prompt
        self._arguments = source.chat_template_arguments
        self._arguments_field = source.chat_template_arguments_field
        self._setting = setting
        requested = source.chat_template
        self._template = None if requested is TemplateUse.NEVER else template
        self.is_templated = self._template is not None
        self._accepts_messages = requested is not TemplateUse.NEVER
        if self._template is None and requested is TemplateUse.ALWAYS:
            raise self._no_template("chatTemplate is always")
        if self._template is None and self._system is not None:
            raise self._no_template("systemPrompt is set")

    def require_template_for_arguments(self) -> None:
        """Refuse arguments of a chat template if there is none to use.

        Raises:
            ChatTemplateUnusable: the source sets some.
        """
        if self._template is None:
            if self._arguments:
                raise self._no_template("chatTemplateArguments is set")
            if self._arguments_field is not None:
                raise self._no_template("chatTemplateArgumentsField is set")

    def arguments(self, row: Row) -> Mapping[str, Any]:
        """Return the template's arguments for a row.

        Raises:
            RowProblem: the row's own arguments are no map by names, or name a variable that
                rendering sets.
        """
        field = self._arguments_field
        own = None if field is None else value_or_none(row, field)
        if own is None:
            return self._arguments
        allowed = (
            "allowed a map of variables for the chat template, by their names, without those that "
            "rendering sets: messages, tools, special tokens"
        )
        if not isinstance(own, Mapping):
            raise RowProblem(f"{field} is {describe(own)}; {allowed}")
        # A map of a columnar file may have keys of any type.
        for name in own:
            if not isinstance(name, str) or is_template_variable(name):
                raise RowProblem(f"{field} has an entry {name!r}; {allowed}")
        # A column of maps has null for a variable that only other rows have.
        return {**self._arguments, **{k: v for k, v in own.items() if v is not None}}

    def write(self, prompt: Any, arguments: Arguments = NO_ARGUMENTS) -> str:
        """Render a prompt, a text or a list of messages.

        Args:
            prompt: a text or a list of messages.
            arguments: of the template.

        Raises:
            RowProblem: the prompt is unusable.
            ChatTemplateUnusable: the prompt has messages, and there is no template.
        """
        if isinstance(prompt, list) and self._accepts_messages:
            return self._from_messages(parse_messages(prompt, self._field), arguments)
        text = checked_text(prompt, self._field)
        if self._template is None:
            return text
        return self._from_messages([{"role": "user", "content": text}], arguments)

    def write_answered(self, prompt: Any, answer: str, arguments: Arguments = NO_ARGUMENTS) -> str:
        """Render a prompt with the assistant's answer by the template.

        Raises:
            RowProblem: the prompt is unusable.
            ChatTemplateUnusable: there is no template.
        """
        if isinstance(prompt, list):
            return self._from_messages(parse_messages(prompt, self._field), arguments, answer)
        text = checked_text(prompt, self._field)
        return self._from_messages([{"role": "user", "content": text}], arguments, answer)

    def write_closed(
        self,
        prompt: Any,
        answer: str,
        ends: Sequence[str],
        arguments: Arguments = NO_ARGUMENTS,
    ) -> str:
        """Render a prompt with the assistant's answer by the template, up to the first end token
        behind the answer; with the first of `ends` if the template writes none.

        Args:
            prompt: a text or a list of messages.
            answer: its answer.
            ends: texts of the end tokens.
            arguments: of the template.

        Raises:
            RowProblem: the prompt is unusable, or the template renders it in another way if an
                answer follows.
            ChatTemplateUnusable: there is no template.
        """
        begin = self.write(prompt, arguments)
        text = self.write_answered(prompt, answer, arguments)
        if not text.startswith(begin):
            same = len(commonprefix([begin, text]))
            raise RowProblem(
                f"the chat template renders {self._field} in another way if an answer follows: got "
                f"{text[same : same + 40]!r} instead of {begin[same : same + 40]!r}; give the "
                "model another chat_template.jinja, or set chatTemplate: Never"
            )
        # What the template writes behind an answer. The mark is in no template and no prompt.
        marked = self.write_answered(prompt, ANSWER_MARK, arguments)
        tail = marked.rpartition(ANSWER_MARK)[2]
        content = text.removesuffix(tail)
        # A template may strip the answer, or write something before it.
        if not text.endswith(tail) or answer.strip() not in content[len(begin) :]:
            raise RowProblem(
                "the chat template leaves out a part of the answer: got "
                f"{content[len(begin) :][:60]!r}, allowed templates that render all of it; give "
                "the model another chat_template.jinja, or remove that part from the data"
            )
        matches = [(at, end) for end in ends if (at := tail.find(end)) >= 0]
        if not matches:
            return content + ends[0]
        at, end = min(matches)
        return content + tail[:at] + end

    def _from_messages(
        self, messages: list[Message], arguments: Arguments, answer: str | None = None
    ) -> str:
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
            rendered = self._template.render(messages, answer is not None, arguments)
        except TemplateRefusal as refusal:
            raise RowProblem(f"the chat template refuses {self._field}: {refusal}") from refusal
        # Arguments and fields of messages reach the text, too.
        return checked_text(rendered, f"{self._field}, rendered by the chat template,")

    def _no_template(self, why: str) -> ChatTemplateUnusable:
        setting = self._setting
        return ChatTemplateUnusable(
            f"{setting} needs a chat template and has none to use: {why}, got chatTemplate "
            "Never or a tokenizer without template; use a chat model's tokenizer, put "
            f"chat_template.jinja into the model's folder, or give {setting} plain text prompts "
            "with chatTemplate: Never, no systemPrompt and no chatTemplateArguments"
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
    value = value_or_none(row, name)
    try:
        if isinstance(value, list) and value and isinstance(value[0], Mapping):
            return last_answer(parse_messages(value, name), name)
        return checked_text(answer_texts(value)[0], name)
    except (RowProblem, ValueError) as problem:
        if field is None:
            return None
        if isinstance(problem, RowProblem):
            raise
        raise RowProblem(
            f"{field} is {describe(value)}; allowed an answer as text, number, a list of these, "
            "or a list with one message of the assistant"
        ) from problem


def prompt_and_answer(row: Row, source: DataSource) -> tuple[Any, str | None]:
    """Return a row's prompt, and its reference answer as text or None.

    A conversation that ends with a message of the assistant is a prompt with its answer, unless the
    row has another answer. It must be one if answerField and promptField are the same.

    Raises:
        RowProblem: the row has no prompt, or no usable answer in the field that the source names.
    """
    field = source.prompt_field
    prompt, is_conversation = prompt_value(row, field), source.answer_field == field
    answer = None if is_conversation else answer_text(row, source.answer_field)
    if isinstance(prompt, list) and len(prompt) > 1:
        *before, last = parse_messages(prompt, field)
        if last["role"] == "assistant":
            return before, answer_of(last, field) if answer is None else answer
    if is_conversation:
        raise RowProblem(
            f"{field} is no conversation that ends with the assistant; allowed a list of messages "
            "whose last one is the answer"
        )
    return prompt, answer


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
    except (TypeError, ValueError, RecursionError) as error:
        column = next((name for name, value in row.items() if not _is_json(value)), "a field")
        raise RowProblem(
            f"{column} holds a value that a verifier cannot receive ({error}); write it as text"
        ) from error


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
    except (TypeError, ValueError, RecursionError):
        return False
    return True


def _json_value(value: Any) -> str:
    """Convert a value that columnar files have and JSON lacks to text."""
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, Decimal | timedelta | UUID):
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
    chosen, rejected = (value_or_none(row, name) for name in names)
    if isinstance(chosen, list) and isinstance(rejected, list):
        pair = _from_messages(row, prompt_field, names, (chosen, rejected))
    else:
        texts = [
            checked_text(value, name) for value, name in zip((chosen, rejected), names, strict=True)
        ]
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
        last_answer(messages[len(shared) :], name)
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
