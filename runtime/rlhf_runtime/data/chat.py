"""Chat templates: convert messages to the text format that a model was tuned on.

Templates are Jinja programs that come with a tokenizer. They run in a sandbox, with the filters and
globals that Hugging Face defines for them. One difference is deliberate: `strftime_now` returns a
fixed date.

Source: transformers, utils/chat_template_utils.py.
"""

# Reimplemented instead of calling transformers, whose import would load torch.

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from types import MappingProxyType
from typing import Any

from jinja2 import TemplateError, TemplateSyntaxError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from rlhf_runtime.data.errors import ChatTemplateUnusable
from rlhf_runtime.environments.tool_schema import ToolSchema

Message = Mapping[str, Any]

# Today's date in templates: the default date of Llama 3's template.
# Fixed: a prompt that changes with the calendar would make a resumed run differ from an
# uninterrupted one.
TEMPLATE_DATE = datetime(2024, 7, 26)

KNOWN_ROLES = frozenset({"system", "developer", "user", "assistant", "tool", "function", "ipython"})
"""Roles of messages that chat models know."""
ANSWER_MARK = "\ue000answer\ue000"
"""Stands for an answer where only the text behind it matters; of a private use area."""
_QUOTED_NAME = re.compile(r"""['"](\w+)['"]""")

# Errors of a template's expressions: it is a program, whose values come from rows and arguments.
_REFUSALS = (
    TemplateError,
    TypeError,
    ValueError,
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
)


class TemplateRefusal(Exception):
    """The template refuses these messages, for example because roles do not alternate."""


class _GenerationTag(Extension):
    """`{% generation %}` marks the assistant's messages; here it passes its contents through."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class ChatTemplate:
    """A compiled chat template with the tokenizer's special tokens."""

    def __init__(self, text: str, special_tokens: Mapping[str, str]) -> None:
        """Compile a template.

        special_tokens: values of bos_token, eos_token and the like in templates.

        Raises:
            ChatTemplateUnusable: the template is not valid.
        """
        try:
            self._template = _environment().from_string(text)
        except TemplateSyntaxError as error:
            raise ChatTemplateUnusable(
                f"the tokenizer's chat template is broken: {error} (line {error.lineno}); correct "
                "chat_template.jinja or tokenizer_config.json in the model's folder"
            ) from error
        self._special_tokens = dict(special_tokens)
        self._roles = KNOWN_ROLES | set(_QUOTED_NAME.findall(text))

    def render(
        self,
        messages: Sequence[Message],
        is_answered: bool = False,
        arguments: Mapping[str, Any] = MappingProxyType({}),
        tools: Sequence[ToolSchema] | None = None,
    ) -> str:
        """Render a conversation up to where the assistant's answer begins.

        Args:
            messages: of the conversation.
            is_answered: whether the last message is the answer; the text then ends after it.
            arguments: further variables of the template.
            tools: that the model may call. None: those of the variable `tools` of the arguments.

        Raises:
            TemplateRefusal: the template raised an error for these messages, or they have a role
                that no model knows and the template does not name.
        """
        tools = arguments.get("tools") if tools is None else tools
        # Most templates write any role into the prompt: `human` would be trained on unseen.
        for message in messages:
            if (role := message["role"]) not in self._roles:
                raise TemplateRefusal(
                    f"it has no role {role}, allowed system, user, assistant and the roles that "
                    "it names; rename the role in your data"
                )
        try:
            return self._template.render(
                # A dict: `self` may be the name of an argument.
                {
                    **arguments,
                    "messages": list(messages),
                    "tools": None if tools is None else list(tools),
                    "documents": None,
                    "add_generation_prompt": not is_answered,
                    **self._special_tokens,
                }
            )
        except _REFUSALS as error:
            raise TemplateRefusal(str(error)) from error

    def text_behind_answer(self) -> str:
        """Return what the template writes behind the last answer of a conversation; empty if it
        refuses a short conversation."""
        messages = [
            {"role": "user", "content": "1"},
            {"role": "assistant", "content": ANSWER_MARK},
        ]
        try:
            text = self.render(messages, is_answered=True)
        except TemplateRefusal:
            return ""
        return text.rpartition(ANSWER_MARK)[2] if ANSWER_MARK in text else ""


def _environment() -> ImmutableSandboxedEnvironment:
    # The same options as transformers: templates depend on them for white space.
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols]
    )
    # Jinja's own tojson escapes HTML, which would change the prompt.
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = TEMPLATE_DATE.strftime
    return environment


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON without Jinja's escaping of HTML."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise_exception(message: str) -> None:
    raise TemplateError(message)
