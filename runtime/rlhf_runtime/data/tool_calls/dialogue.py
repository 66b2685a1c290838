"""The dialogue of a model with its tools, in tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlhf_api.spec.conversation import ToolFormat
from rlhf_runtime.data.errors import ChatTemplateUnusable
from rlhf_runtime.data.tokenizer import TextTokenizer
from rlhf_runtime.data.tool_calls.answer_texts import AnswerTexts
from rlhf_runtime.data.tool_calls.formats import FORMATS
from rlhf_runtime.data.tool_calls.messages import Call
from rlhf_runtime.data.tool_calls.plain_answers import PlainAnswers
from rlhf_runtime.data.tool_calls.template_answers import TemplateAnswers
from rlhf_runtime.data.tool_calls.tools import Tools
from rlhf_runtime.environments.tool_call import ToolCall
from rlhf_runtime.environments.tool_schema import ToolSchema

Tokens = NDArray[np.int32]


class ToolDialogue:
    """Reads the calls of a turn, and makes the tokens between it and the next turn.

    With a chat template these are the tokens of its rendering. Without one the format is Python:
    prompts are as the data has them, and every answer stands on a line of its own behind the turn.

    format: of calls.
    schemas: of the tools, for the rendering of the first prompt; empty without a chat template.
    """

    def __init__(
        self,
        tokenizer: TextTokenizer,
        tools: Sequence[ToolSchema],
        format: ToolFormat | None = None,
        arguments: Mapping[str, Any] = MappingProxyType({}),
        uses_template: bool = True,
    ) -> None:
        """Check that the tokenizer can write calls and answers.

        Args:
            tokenizer: of the policy.
            tools: schemas of the tools that the model may call.
            format: of calls; None: that of the chat template, or Python without one.
            arguments: further variables of the chat template, as in the first prompt.
            uses_template: False if prompts do not pass through the chat template.

        Raises:
            ToolsUnusable: the schemas cannot be used.
            ChatTemplateUnusable: there is no chat template and the format needs one; the template
                ignores tools, has no role for their answers, removes thinking or rewrites earlier
                turns, or writes calls in a format that is not known or not the requested one; or
                the tokenizer cannot write the texts of the Python format.
        """
        self._tokenizer = tokenizer
        self._tools = Tools(tools)
        self._texts = AnswerTexts(tokenizer)
        template = tokenizer.tool_template if uses_template else None
        self._is_templated = template is not None
        self._writer: TemplateAnswers | PlainAnswers
        if template is not None:
            self._writer = TemplateAnswers(template, tokenizer, self._tools, arguments, format)
            self.format = self._writer.format
            self.schemas = self._tools.schemas
        elif format in (None, ToolFormat.PYTHON):
            self._writer = PlainAnswers(tokenizer, self._tools)
            self.format = ToolFormat.PYTHON
            self.schemas = []
        else:
            raise ChatTemplateUnusable(
                f"calls of tools in the format {format} need a chat template: got a tokenizer "
                f"without one, or chatTemplate Never, in {tokenizer.folder}; use a chat model's "
                "tokenizer, put chat_template.jinja into the model's folder, or set the format "
                "Python"
            )

    def prompt_tokens(self, text: str) -> Tokens:
        """Return the tokens of a first prompt, as a data host makes them.

        Args:
            text: of the prompt, rendered by the chat template if there is one.

        Returns:
            int32 [tokens].
        """
        # A chat template writes special tokens itself.
        return self._encoded(text, add_special_tokens=not self._is_templated)

    def calls(self, turn: Tokens) -> list[Call]:
        """Return the calls of a turn in their order; empty if it has none.

        Args:
            turn: sampled token ids, int32 [tokens].
        """
        text = self._writer.opened_thinking + self._tokenizer.text_of(self._without_end(turn))
        return FORMATS[self.format].parse(text, self._tools)

    def turn_with(self, call: ToolCall) -> Tokens:
        """Return the tokens of a turn with one call, in the model's own format, with an end token.

        Args:
            call: of a tool; arguments by name.

        Raises:
            ChatTemplateUnusable: the chat template cannot write the arguments.
        """
        return self._encoded(self._writer.turn_with(call))

    def answer_tokens(self, turn: Tokens, calls: Sequence[Call], answers: Sequence[str]) -> Tokens:
        """Return the tokens between a turn with calls and the next turn.

        Texts of special tokens within answers are broken, see `AnswerTexts`.

        Args:
            turn: sampled token ids, int32 [tokens].
            calls: of the turn, at least one.
            answers: one for every call, malformed ones included.

        Returns:
            int32 [tokens]: the end of the turn if it lacks one, the answers, and the begin of the
            next turn.

        Raises:
            ChatTemplateUnusable: the template refuses the answers.
        """
        if not calls or len(calls) != len(answers):
            raise ValueError(
                f"got {len(answers)} answers to {len(calls)} calls, allowed one for each"
            )
        end, text = self._writer.text_behind(calls, [self.harmless(text) for text in answers])
        # The end token stands in front even if it is not needed: tokenizers treat the begin of a
        # text in another way.
        tokens = self._encoded(text)
        is_ended = len(turn) > 0 and int(turn[-1]) in self._tokenizer.end_token_ids
        is_same = is_ended and int(turn[-1]) == int(tokens[0])
        needs_no_end = is_same or (is_ended and self._writer.replaces(end))
        return tokens[1:] if needs_no_end or not self._writer.ends_turns else tokens

    def harmless(self, text: str) -> str:
        """Return a text of an environment without texts of special tokens; see `answer_tokens`."""
        return self._texts.harmless(text)

    def _without_end(self, turn: Tokens) -> list[int]:
        tokens: list[int] = turn.tolist()
        return tokens[:-1] if tokens and tokens[-1] in self._tokenizer.end_token_ids else tokens

    def _encoded(self, text: str, *, add_special_tokens: bool = False) -> Tokens:
        column = self._tokenizer.encode([text], add_special_tokens)
        return next(iter(column.runs())).astype(np.int32, copy=False)
