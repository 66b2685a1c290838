"""The formats of tool calls by name: one table of all."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import islice

from rlhf_api.spec.conversation import ToolFormat
from rlhf_runtime.data.tool_calls.gemma import gemma_calls
from rlhf_runtime.data.tool_calls.json_formats import hermes_calls, llama_calls, mistral_calls
from rlhf_runtime.data.tool_calls.python_format import python_calls
from rlhf_runtime.data.tool_calls.tagged_formats import (
    deepseek_calls,
    harmony_calls,
    qwen_xml_calls,
)
from rlhf_runtime.data.tool_calls.tools import Tools, WrittenCall, WrittenCalls, malformed
from rlhf_runtime.environments.tool_call import MalformedCall, ToolCall

MAX_CALLS = 128
"""Calls of one turn that are read."""
THINKING = (("<think>", "</think>"), ("[THINK]", "[/THINK]"), ("<|channel>", "<channel|>"))
"""Tags around the thinking at the begin of a turn."""


@dataclass(frozen=True, slots=True)
class CallFormat:
    """A format of calls.

    find: yields the calls of a text in their order, not checked yet.
    """

    name: ToolFormat
    find: Callable[[str, Tools], WrittenCalls]

    def written(self, text: str, tools: Tools) -> list[WrittenCall | MalformedCall]:
        """Return the calls of one turn, not checked yet, at most `MAX_CALLS` and one malformed.

        Args:
            text: of the turn, special tokens visible, without its end token.
            tools: that the model may call.
        """
        calls = list(islice(self.find(without_thinking(text), tools), MAX_CALLS + 1))
        if len(calls) > MAX_CALLS:
            calls[MAX_CALLS] = malformed("", f"a turn has at most {MAX_CALLS} calls")
        return calls

    def parse(self, text: str, tools: Tools) -> list[ToolCall | MalformedCall]:
        """Return the calls of one turn in their order, names and arguments checked.

        Calls within the thinking at the begin of a turn are no calls.

        Args:
            text: of the turn, special tokens visible, without its end token.
            tools: that the model may call.
        """
        return [
            call if isinstance(call, MalformedCall) else tools.checked(call)
            for call in self.written(text, tools)
        ]


_FINDERS: Mapping[ToolFormat, Callable[[str, Tools], WrittenCalls]] = {
    ToolFormat.HERMES: hermes_calls,
    ToolFormat.LLAMA: llama_calls,
    ToolFormat.MISTRAL: mistral_calls,
    ToolFormat.GEMMA: gemma_calls,
    ToolFormat.DEEPSEEK: deepseek_calls,
    ToolFormat.HARMONY: harmony_calls,
    ToolFormat.QWEN_XML: qwen_xml_calls,
    ToolFormat.PYTHON: python_calls,
}
FORMATS: Mapping[ToolFormat, CallFormat] = {
    name: CallFormat(name, find) for name, find in _FINDERS.items()
}
"""All formats by name."""


def without_thinking(text: str) -> str:
    """Return a turn's text without the thinking at its begin; empty if the thinking has no end."""
    for opening, closing in THINKING:
        if text.lstrip().startswith(opening):
            return text.partition(closing)[2]
    return text
