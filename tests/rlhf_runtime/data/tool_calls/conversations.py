"""Random conversations with tools, and what tokens they must have."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from hypothesis import strategies as st

from rlhf_runtime.data.chat import ChatTemplate, Message
from rlhf_runtime.data.tokenizer import TextTokenizer
from rlhf_runtime.data.tool_calls.dialogue import ToolDialogue
from rlhf_runtime.environments.tool_call import ToolCall


def schema(name: str, required: Sequence[str] = (), **properties: Mapping[str, Any]) -> Any:
    """The schema of a tool."""
    described = {key: {**value, "description": key} for key, value in properties.items()}
    parameters = {"type": "object", "properties": described, "required": list(required)}
    function = {"name": name, "description": f"Does {name}.", "parameters": parameters}
    return {"type": "function", "function": function}


TOOLS = [
    schema(
        "search",
        ["query"],
        query={"type": "string"},
        limit={"type": "integer"},
        exact={"type": "boolean"},
        filters={"type": "object"},
        tags={"type": "array", "items": {"type": "string"}},
    ),
    schema("add", ["a", "b"], a={"type": "number"}, b={"type": "number"}),
    schema("now"),
]
EMPTY_THINKING = "<think>\n\n</think>\n\n"
USER: Message = {"role": "user", "content": "Was ist 2 + 3? 数学"}

# No text of a special token, no combining characters: some tokenizers normalize them.
_PIECES = ["a", "B", "7", " ", "\n", "\t", '"', "'", "\\", "{", "}", "[", "]", ",", ":", "ü", "数"]
_PIECES += [
    "🧮",
    "</tool_call>",
    "<b>&amp;",
    "%",
    "null",
    "```",
    "\n\n",
    "  ",
    "(",
    ")",
    "functions.",
]
texts = st.lists(st.sampled_from(_PIECES), max_size=8).map("".join)
# Some templates trim what tools and models say.
words = st.text("abc ü数.", min_size=1, max_size=12).map(str.strip).filter(bool)
names = st.sampled_from(["x", "key_1", "größe", "B"])
scalars = st.none() | st.booleans() | st.integers(-(10**12), 10**12) | texts
scalars |= st.floats(allow_nan=False, allow_infinity=False)
values = st.recursive(
    scalars, lambda v: st.lists(v, max_size=3) | st.dictionaries(names, v, max_size=3), max_leaves=6
)
numbers = st.integers(-(10**9), 10**9) | st.floats(-1e9, 1e9)
searches = st.fixed_dictionaries(
    {"query": texts},
    optional={
        "limit": st.integers(-5, 10**10),
        "exact": st.booleans(),
        "filters": st.dictionaries(names, values, max_size=3),
        "tags": st.lists(texts, max_size=3),
    },
)
calls = (
    searches.map(lambda arguments: ToolCall("search", arguments))
    | st.fixed_dictionaries({"a": numbers, "b": numbers}).map(lambda a: ToolCall("add", a))
    | st.just(ToolCall("now", {}))
)


class Round(NamedTuple):
    """A turn with calls and its answers."""

    words: str
    calls: list[ToolCall]
    answers: list[str]


def rounds(writes_words: bool, several: bool) -> st.SearchStrategy[list[Round]]:
    """Conversations of one to three rounds.

    Args:
        writes_words: False: turns are calls alone.
        several: False: a turn has one call.
    """
    numbered = st.lists(calls, min_size=1, max_size=2 if several else 1).flatmap(
        lambda made: st.builds(
            Round,
            st.just("") | words if writes_words else st.just(""),
            st.just(made),
            st.lists(texts | words, min_size=len(made), max_size=len(made)),
        )
    )
    return st.lists(numbered, min_size=1, max_size=3)


class Form(NamedTuple):
    """The form of messages that a template accepts."""

    arguments_as_text: bool = False
    thinking: bool = False
    """True: every turn begins with thoughts."""
    arguments: Mapping[str, Any] = {}
    """Of the template."""


def messages_of(turn: Round, form: Form) -> list[Message]:
    """The messages of a round, written apart from the code under test."""
    content = f"<think>\nThree steps.\n</think>\n\n{turn.words}" if form.thinking else turn.words
    made, answered = [], []
    for number, (call, answer) in enumerate(zip(turn.calls, turn.answers, strict=True)):
        id = f"call{number:05d}"
        arguments = dict(call.arguments)
        written = json.dumps(arguments, ensure_ascii=False) if form.arguments_as_text else arguments
        function = {"name": call.name, "arguments": written}
        made.append({"id": id, "type": "function", "function": function})
        answered.append({"role": "tool", "name": call.name, "tool_call_id": id, "content": answer})
    return [{"role": "assistant", "content": content, "tool_calls": made}, *answered]


def encode(tokenizer: TextTokenizer, text: str) -> list[int]:
    column = tokenizer.encode([text], add_special_tokens=False)
    tokens: list[int] = column.runs()[0].tolist()
    return tokens


beginnings = st.sampled_from(
    [
        [USER],
        [{"role": "system", "content": "Be brief."}, USER],
        [USER, {"role": "assistant", "content": "5"}, {"role": "user", "content": "And 7?"}],
    ]
)
"""Prompts of conversations."""


def check_conversation(
    tokenizer: TextTokenizer, beginning: Sequence[Message], made: Sequence[Round], form: Form
) -> None:
    """Play a conversation whose turns are as the template writes them, and compare every prompt
    with the tokens of the template's rendering of the whole conversation so far.

    Args:
        tokenizer: with a chat template.
        beginning: the messages of the first prompt.
        made: the turns.
        form: of messages.
    """
    template = tokenizer.chat_template
    assert isinstance(template, ChatTemplate)
    dialogue = ToolDialogue(tokenizer, TOOLS, arguments=form.arguments)
    messages = list(beginning)
    prompt = template.render(messages, tools=TOOLS, arguments=form.arguments)
    tokens, history = encode(tokenizer, prompt), prompt
    for turn in made:
        messages += messages_of(turn, form)
        whole = template.render(messages, tools=TOOLS, arguments=form.arguments)
        # Templates of hybrid models write an empty block of thinking where the model begins, and
        # leave it out later. What was in a prompt stays.
        begin = prompt if whole.startswith(prompt) else prompt.removesuffix(EMPTY_THINKING)
        assert whole.startswith(begin)
        history += whole[len(begin) :]
        sampled, end = _canonical_turn(tokenizer, begin, whole)
        read = dialogue.calls(np.asarray(sampled, np.int32))
        assert [(c.name, c.arguments) for c in read if isinstance(c, ToolCall)] == [
            (c.name, c.arguments) for c in turn.calls
        ]
        assert len(read) == len(turn.calls)
        answered = dialogue.answer_tokens(np.asarray(sampled, np.int32), read, turn.answers)
        # A stop text ended the turn: its end token is missing.
        unended = np.asarray(sampled[:-1], np.int32)
        assert dialogue.answer_tokens(unended, read, turn.answers).tolist() == [
            end,
            *answered.tolist(),
        ]
        tokens += [*sampled, *answered.tolist()]
        assert tokenizer.text_of(tokens) == history
        assert tokens == encode(tokenizer, history)
        prompt = whole


def _canonical_turn(tokenizer: TextTokenizer, begin: str, whole: str) -> tuple[list[int], int]:
    """Return the tokens of the turn behind a beginning, up to its end token, and this token."""
    rest = encode(tokenizer, whole)[len(encode(tokenizer, begin)) :]
    length = next(n for n, token in enumerate(rest, 1) if token in tokenizer.end_token_ids)
    return rest[:length], rest[length - 1]
