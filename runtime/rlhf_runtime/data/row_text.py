"""Writes rows as text: prompts and conversations by the chat template, records as JSON."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from os.path import commonprefix
from types import MappingProxyType
from typing import Any, NamedTuple
from uuid import UUID

from rlhf_api.spec.row_sources import ChatTemplate as TemplateUse
from rlhf_api.spec.row_sources import DataSource, is_template_variable
from rlhf_runtime.data.chat import ANSWER_MARK, ChatTemplate, Message, TemplateRefusal
from rlhf_runtime.data.errors import ChatTemplateUnusable
from rlhf_runtime.data.files import Row
from rlhf_runtime.data.row_checks import (
    RowProblem,
    checked_prompt,
    checked_text,
    describe,
    is_trained_on,
    prompt_messages,
)
from rlhf_runtime.data.row_responses import ASSISTANT, Response, answer_message
from rlhf_runtime.data.source_setting import SourceSetting
from rlhf_runtime.row_values import value_or_none

Arguments = Mapping[str, Any]
"""Arguments of a chat template."""
NO_ARGUMENTS: Arguments = MappingProxyType({})


class Answer(NamedTuple):
    """Position of an answer in the text of a conversation."""

    begin: int
    """End of the text as it is where the model begins to answer."""
    end_token: int
    """Begin of the end token."""
    end: int
    """End of the end token."""
    is_trained: bool
    """False if it has weight 0."""


class Conversation(NamedTuple):
    """A prompt with its response, as the chat template renders them."""

    text: str
    """Up to the last answer's end token."""
    answers: tuple[Answer, ...]
    """All answers of the response; what is between them is context."""


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
            return self._from_messages(prompt_messages(prompt, self._field), arguments)
        if self._template is None:
            return checked_text(prompt, self._field)
        text = checked_prompt(prompt, self._field)
        return self._from_messages([{"role": "user", "content": text}], arguments)

    def write_answered(self, prompt: Any, answer: str, arguments: Arguments = NO_ARGUMENTS) -> str:
        """Render a prompt with the assistant's answer by the template.

        Raises:
            RowProblem: the prompt is unusable.
            ChatTemplateUnusable: there is no template.
        """
        if isinstance(prompt, list):
            return self._from_messages(prompt_messages(prompt, self._field), arguments, answer)
        text = checked_prompt(prompt, self._field)
        return self._from_messages([{"role": "user", "content": text}], arguments, answer)

    def write_conversation(
        self,
        prompt: Any,
        response: Response,
        ends: Sequence[str],
        arguments: Arguments = NO_ARGUMENTS,
    ) -> Conversation:
        """Render a prompt with the response by the template, up to the first end token behind the
        last answer; with the first of `ends` if the template writes none.

        Args:
            prompt: a text or a list of messages.
            response: to the prompt.
            ends: texts of the end tokens.
            arguments: of the template.

        Raises:
            RowProblem: the prompt is unusable, or the template renders messages in another way if
                others follow.
            ChatTemplateUnusable: there is no template.
        """
        text, answers, beginnings = "", list[Answer](), list[str]()
        for number, message in enumerate(response):
            if message["role"] != ASSISTANT:
                continue
            before = [*prompt, *response[:number]] if number else prompt
            text, answer = self._write_answer(before, message, ends, arguments)
            beginnings.append(text)
            answers.append(answer)
        # An answer is trained on as if the conversation ended with it, so that all of them are
        # what the model would have to write there.
        for number, beginning in enumerate(beginnings[:-1]):
            if not text.startswith(beginning) or answers[number + 1].begin < len(beginning):
                same = len(commonprefix([text, beginning]))
                raise RowProblem(
                    f"the chat template renders answer {number + 1} of {len(answers)} in another "
                    f"way if messages follow: got {text[same : same + 40]!r} instead of "
                    f"{beginning[same : same + 40]!r}; set trainOn: LastAnswer, or give the model "
                    "another chat_template.jinja"
                )
        return Conversation(text, tuple(answers))

    def _write_answer(
        self, prompt: Any, message: Message, ends: Sequence[str], arguments: Arguments
    ) -> tuple[str, Answer]:
        """Render a prompt with one answer; for arguments and errors see `write_conversation`."""
        answer = message["content"]
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
        at, end = min(matches) if matches else (0, ends[0])
        closed = content + tail[:at] + end
        is_trained = is_trained_on(message, self._field)
        return closed, Answer(len(begin), len(closed) - len(end), len(closed), is_trained)

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
            messages = [*messages, answer_message(answer)]
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
