"""Answers of tools without a chat template: lines of text."""

from __future__ import annotations

import json
from collections.abc import Sequence

from rlhf_runtime.data.errors import ChatTemplateUnusable
from rlhf_runtime.data.tokenizer import TextTokenizer
from rlhf_runtime.data.tool_calls.messages import Call
from rlhf_runtime.data.tool_calls.template_answers import Behind
from rlhf_runtime.data.tool_calls.tools import Tools
from rlhf_runtime.environments.tool_call import ToolCall

LINE_BREAK = "\n"


def answer_lines(answers: Sequence[str]) -> str:
    """Return the text between the end token of a turn and the next turn."""
    return LINE_BREAK + LINE_BREAK.join([*answers, ""])


class PlainAnswers:
    r"""The texts between turns without a chat template: `\n`, the answers on lines of their own.

    A turn `add(12,30)` and its end token are followed by `\n42\n`, then the next turn begins; two
    answers by `\n42\n7\n`. A turn that a stop text ended gets no end token. Where this stop text is
    itself a line break, there is an empty line, so that all turns are answered alike.
    """

    ends_turns = False
    """False: nothing closes a turn that a stop text has ended."""
    opened_thinking = ""

    def __init__(self, tokenizer: TextTokenizer, tools: Tools) -> None:
        """Check that the tokenizer has the characters of calls and answers.

        Raises:
            ChatTemplateUnusable: it has not.
        """
        self._end, self._tools = tokenizer.end_texts()[0], tools
        for text in [LINE_BREAK, *(f"{name}(,)" for name in tools.names)]:
            column = tokenizer.encode([text], add_special_tokens=False)
            written = tokenizer.text_of(column.runs()[0].tolist())
            if written.strip(" ") != text:
                raise ChatTemplateUnusable(
                    "the tokenizer cannot write calls of tools and lines of answers: got "
                    f"{written!r} for {text!r} in {tokenizer.folder}, allowed tokenizers with the "
                    "characters of the tools' names, parentheses, comma and line break; rename the "
                    "tool, or use another tokenizer"
                )

    def text_behind(self, calls: Sequence[Call], answers: Sequence[str]) -> Behind:
        """Return the text behind a turn with calls, an end token in front.

        Args:
            calls: of the turn.
            answers: one for every call.
        """
        return Behind(self._end, self._end + answer_lines(answers))

    def turn_with(self, call: ToolCall) -> str:
        """Return the text of a turn with a call, with an end token."""
        parameters, written = self._tools.parameter_names(call.name), list[str]()
        for name, value in call.arguments.items():
            text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
            # A name is written behind an argument that was left out only.
            is_next = parameters[: len(written) + 1][-1:] == [name]
            written.append(text if is_next else f"{name}={text}")
        return f"{call.name}({','.join(written)}){self._end}"

    def replaces(self, end: str) -> bool:
        """True: a turn is never closed by a second end token."""
        return True
