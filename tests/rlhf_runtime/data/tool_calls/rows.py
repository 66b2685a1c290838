"""Rows with random conversations, and what tokens they must have."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st

from rlhf_runtime.data.chat import Message
from rlhf_runtime.data.tokenizer import TextTokenizer
from rlhf_runtime.data.tool_calls.dialogue import ToolDialogue

from ..conversation_rows import build, runs
from .conversations import TOOLS, USER, Form, Round, messages_of

SYSTEM: Message = {"role": "system", "content": "Be brief."}
prompts = st.sampled_from([[USER], [SYSTEM, USER]])


def check_row(
    tokenizer: TextTokenizer,
    prompt: Sequence[Message],
    made: Sequence[Round],
    last: str,
    form: Form,
) -> None:
    """Train on a conversation, and compare its tokens with those that a generated one has.

    Args:
        tokenizer: with a chat template.
        prompt: the first messages.
        made: the turns with calls.
        last: the answer behind them.
        form: of messages.
    """
    messages = [message for turn in made for message in messages_of(turn, form)]
    content = f"<think>\nDone.\n</think>\n\n{last}" if form.thinking else last
    messages.append({"role": "assistant", "content": content})
    row = {"messages": [*prompt, *map(_as_stored, messages)], "tools": TOOLS}
    arguments = {"chatTemplateArguments": dict(form.arguments)}
    table = build([row], tokenizer, limit=10**6, max_prompt=10**6, **arguments)
    (tokens,), (mask,) = runs(table.answers), runs(table.answers_mask)
    dialogue = ToolDialogue(tokenizer, TOOLS, arguments=form.arguments)
    at = 0
    for turn in made:
        length = _turn_length(tokenizer, tokens[at:])
        sampled = np.asarray(tokens[at : at + length], np.int32)
        calls = dialogue.calls(sampled)
        assert [(call.name, call.arguments) for call in calls] == [  # type: ignore[union-attr]
            (call.name, call.arguments) for call in turn.calls
        ]
        behind = dialogue.answer_tokens(sampled, calls, turn.answers).tolist()
        assert tokens[at + length :][: len(behind)] == behind
        assert mask[at:][: length + len(behind)] == [1] * length + [0] * len(behind)
        at += length + len(behind)
    assert _turn_length(tokenizer, tokens[at:]) == len(tokens) - at and set(mask[at:]) == {1}
    assert last in tokenizer.text_of(tokens[at:])


def _as_stored(message: Message) -> dict[str, Any]:
    """The message as data have it: arguments as JSON, no ids and names that repeat others."""
    stored = {name: message[name] for name in ("role", "content")}
    if "tool_calls" in message:
        functions = [call["function"] for call in message["tool_calls"]]
        stored["tool_calls"] = [
            {"function": {**function, "arguments": _json_text(function["arguments"])}}
            for function in functions
        ]
    return stored


def _json_text(arguments: Any) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)


def _turn_length(tokenizer: TextTokenizer, tokens: Sequence[int]) -> int:
    return next(n for n, token in enumerate(tokens, 1) if token in tokenizer.end_token_ids)
