"""Conversations are shown turn by turn, and shortened where they are long."""

from __future__ import annotations

import json

import numpy as np
import pytest

from rlhf_api.spec.stopping import StopReason
from rlhf_runtime.conversations.conversation import Conversation, Turn
from rlhf_runtime.environments.results import EpisodeFailure, FailureKind
from rlhf_runtime.environments.tool_call import MalformedCall, ToolCall
from rlhf_runtime.telemetry.conversations import (
    MAX_CALLS,
    MAX_TURNS,
    ConversationTurn,
    ConversationView,
    ToolUse,
    view_of_record,
)

from ..conversations.scripted import ScriptedDialogue


def of_texts(*texts: str) -> ConversationView:
    turns = tuple(ConversationTurn(number, text) for number, text in enumerate(texts))
    return ConversationView(turns, num_turns=len(turns))


def test_the_record_of_a_conversation_is_shown_turn_by_turn() -> None:
    conversation = Conversation(0, ScriptedDialogue(), "{}", np.array([1], dtype=np.int32), 9)
    calls = [
        ToolCall("add", {"a": 1, "b": "x"}),
        MalformedCall("add(", "no end"),
        ToolCall("fail", {}),
    ]
    answers = ["2", "error: no end", "error: ValueError"]
    conversation.turns = [
        Turn("add(1)", 6, calls, answers, 0.5, wrong=[1, 2]),
        Turn("add(2)", 9, [ToolCall("add", {})]),
    ]
    conversation.reason, conversation.reward = StopReason.TURN_LIMIT, {"right": 1.0}
    conversation.failure = EpisodeFailure(FailureKind.TOOL_DEADLINE, "too slow")
    assert view_of_record(conversation.to_record()) == ConversationView(
        (
            ConversationTurn(
                0,
                "add(1)",
                (
                    ToolUse('add(a=1, b="x")', "2"),
                    ToolUse("add(", "error: no end", is_error=True),
                    ToolUse("fail()", "error: ValueError", is_error=True),
                ),
                0.5,
            ),
            ConversationTurn(1, "add(2)", (ToolUse("add()", None),)),
        ),
        {"right": 1.0},
        "ToolDeadline: too slow",
        2,
    )
    assert view_of_record("") is None


def test_short_texts_stay_whole_beside_a_long_one() -> None:
    view = of_texts("short", "x" * 1000, "y" * 50).shortened(300)
    first, long, last = (turn.text for turn in view.turns)
    assert (first, last) == ("short", "y" * 50)
    assert "[... 755 characters ...]" in long and len(long.replace("x", "")) < 40


def test_shortening_further_counts_the_characters_of_the_whole_text() -> None:
    view = of_texts("x" * 5000).shortened(1000)
    assert "[... 4900 characters ...]" in view.shortened(100).turns[0].text


@pytest.mark.parametrize("num_turns", [1, MAX_TURNS, MAX_TURNS + 1, 1000])
def test_a_long_conversation_keeps_its_ends(num_turns: int) -> None:
    uses = (ToolUse("add(a=1)" * 100, "2" * 1000),) * (MAX_CALLS + 5)
    turns = tuple(ConversationTurn(number, "z" * 99, uses) for number in range(num_turns))
    view = ConversationView(turns, num_turns=num_turns).shortened(6000)
    numbers = [turn.number for turn in view.turns]
    assert len(numbers) == min(num_turns, MAX_TURNS)
    assert (numbers[0], numbers[-1], view.num_turns) == (0, num_turns - 1, num_turns)
    assert all(len(turn.calls) == MAX_CALLS for turn in view.turns)
    # The mark of what is left out comes on top.
    assert len(json.dumps([turn.text for turn in view.turns])) < 6000
