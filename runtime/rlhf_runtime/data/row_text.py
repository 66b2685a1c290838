"""Writes rows as text: prompts and conversations by the chat template, records as JSON."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from types import MappingProxyType
from typing import Any
from uuid import UUID

from rlhf_api.spec.row_sources import DataSource, TemplateUse, is_template_variable
from rlhf_runtime.data.chat import ChatTemplate, Message, TemplateRefusal
from rlhf_runtime.data.errors import ChatTemplateUnusable
from rlhf_runtime.data.files import Row
from rlhf_runtime.data.row_calls import CALLS, TOOL, TOOLS_FIELD, in_form, row_tools, with_ids
from rlhf_runtime.data.row_checks import RowProblem, checked_prompt, checked_text, describe
from rlhf_runtime.data.row_messages import answer_message, prompt_messages
from rlhf_runtime.data.source_setting import SourceSetting
from rlhf_runtime.data.tokenizer import TextTokenizer
from rlhf_runtime.data.tool_calls.answer_texts import AnswerTexts
from rlhf_runtime.data.tool_calls.messages import MESSAGE_FORMS
from rlhf_runtime.environments.settings import ENVIRONMENT_COLUMN, EnvironmentDescription
from rlhf_runtime.row_values import value_or_none

Arguments = Mapping[str, Any]
"""Variables of a chat template: arguments by their names, and under `tools` those of a row."""
NO_ARGUMENTS: Arguments = MappingProxyType({})


OBSERVATION_MARK = "\ue000observation\ue000"
"""Stands for what an environment observes when a conversation begins; of a private use area."""


class PromptWriter:
    """Renders the prompts of one source as text.

    field: the column of prompts.
    is_templated: True if prompts pass through the chat template, which then writes the tokenizer's
        special tokens itself.
    """

    def __init__(
        self,
        source: DataSource,
        setting: SourceSetting,
        tokenizer: TextTokenizer,
        environment: EnvironmentDescription | None = None,
    ) -> None:
        """Choose the form of prompts.

        Args:
            source: of the rows, a single one.
            setting: the manifest's field of the source.
            tokenizer: of the model that reads the prompts, with its chat template.
            environment: the environments of conversations. None: there are none.

        Raises:
            ChatTemplateUnusable: the source needs a template and the tokenizer has none.
        """
        self.field = source.prompt_field
        self._system = source.system_prompt
        self._arguments = source.chat_template_arguments
        self._arguments_field = source.chat_template_arguments_field
        self._setting = setting
        self._environment = environment
        self._answer_texts = AnswerTexts(tokenizer)
        requested = source.chat_template
        never = requested is TemplateUse.NEVER
        self._tool_template = None if never else tokenizer.tool_template
        self._template = self._tool_template
        if environment is None and not never:
            self._template = tokenizer.chat_template
        self.is_templated = self._template is not None
        self._accepts_messages = not never
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

    def arguments(self, row: Row) -> Arguments:
        """Return the template's variables for a row.

        Raises:
            RowProblem: the row's own arguments are no map by names, or name a variable that
                rendering sets; it names no environment; or its tools are no schemas.
        """
        field = self._arguments_field
        own = None if field is None else value_or_none(row, field)
        fixed = {**self._arguments, **self._tools(row)}
        if own is None:
            return fixed
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
        return {**fixed, **{k: v for k, v in own.items() if v is not None}}

    def _tools(self, row: Row) -> Arguments:
        """Return the template's variable with the tools of a row's environment; without
        environments those of the row itself.

        Raises:
            RowProblem: the row names no environment, or its tools are no schemas.
        """
        environment = self._environment
        if environment is None:
            tools = row_tools(row) if self.is_templated else None
            return NO_ARGUMENTS if tools is None else {TOOLS_FIELD: tools}
        name = environment.environment_of(row)
        if name is None:
            raise RowProblem(
                f"{ENVIRONMENT_COLUMN} is {describe(row.get(ENVIRONMENT_COLUMN))}, allowed the "
                f"name of an environment: {', '.join(environment.environments)}"
            )
        return {TOOLS_FIELD: environment.tool_schemas(name)}

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
            return self._from_messages(prompt_messages(prompt, self.field), arguments)
        if self._template is None:
            return checked_text(prompt, self.field)
        text = checked_prompt(prompt, self.field)
        return self._from_messages([{"role": "user", "content": text}], arguments)

    def write_marked(self, prompt: Any, arguments: Arguments = NO_ARGUMENTS) -> str:
        """Render a prompt with OBSERVATION_MARK where an observation belongs: at the end of its
        last message. Empty if environments add none.

        Args:
            prompt: that `write` has accepted.
            arguments: of the template.

        Raises:
            RowProblem: the last message's content is no text.
        """
        environment = self._environment
        if environment is None or not environment.has_reset:
            return ""
        if not isinstance(prompt, list):
            return self.write(f"{prompt}{self._mark}", arguments)
        *before, last = prompt
        if not isinstance(content := last.get("content"), str):
            raise RowProblem(
                f"the last message of {self.field} is {describe(content)}, allowed a text: an "
                "environment adds its observation to it"
            )
        return self.write([*before, {**last, "content": content + self._mark}], arguments)

    @property
    def _mark(self) -> str:
        # An empty line parts them, as two paragraphs of one message.
        return f"\n\n{OBSERVATION_MARK}" if self.is_templated else OBSERVATION_MARK

    def write_answered(
        self, prompt: Any, answer: str | Message, arguments: Arguments = NO_ARGUMENTS
    ) -> str:
        """Render a prompt with the assistant's answer by the template.

        Args:
            prompt: a text or a list of messages.
            answer: text of the answer, or the assistant's message with it.
            arguments: of the template.

        Raises:
            RowProblem: the prompt is unusable.
            ChatTemplateUnusable: there is no template.
        """
        message = answer_message(answer) if isinstance(answer, str) else answer
        if isinstance(prompt, list):
            return self._from_messages(prompt_messages(prompt, self.field), arguments, message)
        text = checked_prompt(prompt, self.field)
        return self._from_messages([{"role": "user", "content": text}], arguments, message)

    def _from_messages(
        self, messages: list[Message], arguments: Arguments, answer: Message | None = None
    ) -> str:
        if self._template is None:
            raise self._no_template(f"{self.field} holds messages")
        if self._system is not None:
            if messages[0]["role"] == "system":
                raise RowProblem(
                    f"{self.field} begins with its own system message beside systemPrompt"
                )
            messages = [{"role": "system", "content": self._system}, *messages]
        if answer is not None:
            messages = [*messages, answer]
        template = self._tool_template if TOOLS_FIELD in arguments else self._template
        assert template is not None, "one for tools is at least that of all prompts"
        rendered = self._rendered(template, messages, answer is not None, arguments)
        # Arguments and fields of messages reach the text, too.
        return checked_text(rendered, f"{self.field}, rendered by the chat template,")

    def _rendered(
        self,
        template: ChatTemplate,
        messages: Sequence[Message],
        is_answered: bool,
        arguments: Arguments,
    ) -> str:
        """Render messages in the first form of calls that the template accepts.

        Raises:
            RowProblem: it accepts none.
        """
        messages = with_ids([self._with_harmless_answer(message) for message in messages])
        forms = (
            MESSAGE_FORMS if any(CALLS in message for message in messages) else MESSAGE_FORMS[:1]
        )
        refusals = list[TemplateRefusal]()
        for form in forms:
            shown = [in_form(message, form) for message in messages]
            try:
                return template.render(shown, is_answered, arguments)
            except TemplateRefusal as refusal:
                refusals.append(refusal)
        raise RowProblem(f"the chat template refuses {self.field}: {refusals[0]}") from refusals[0]

    def _with_harmless_answer(self, message: Message) -> Message:
        """Return a message whose text is that of a rollout if it is an answer of a tool."""
        if message["role"] != TOOL:
            return message
        return {**message, "content": self._answer_texts.harmless(message["content"])}

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
