"""Conversations are read again from the journal, of the attempt that counts."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from rlhf_runtime.environments.episode import Calls
from rlhf_runtime.environments.episodes import Episodes
from rlhf_runtime.environments.recorded import (
    RecordedConversation,
    read_conversations,
    recorded_passes,
)
from rlhf_runtime.environments.tool_call import MalformedCall, ToolCall
from rlhf_runtime.journal.folder import Position
from rlhf_runtime.telemetry.conversations import ConversationTurn, ToolUse

from .conftest import Attempts, key_of


def play(episodes: Episodes, turns: Sequence[Calls], ends: bool = True, row: int = 0) -> None:
    """Play a conversation whose turns are called `say 0`, `say 1`, ...; the last one has no calls
    that are made."""

    async def main() -> None:
        key = key_of(row)
        await episodes.start()
        try:
            notes = {"prompt_id": 7, "sample": row, "prompt": "add"}
            await episodes.begin(key, {}, notes)
            for number, calls in enumerate(turns):
                await episodes.act(key, number, calls, {"text": f"say {number}"})
            if ends:
                last = {"num_turns": len(turns) + 1, "text": "bye"}
                await episodes.end(key, "EndToken", last)
            await episodes.complete(key.call)
        finally:
            await episodes.close()

    asyncio.run(main())


def read(folder: Path) -> list[RecordedConversation]:
    return read_conversations(folder / "journal", Position(1))


def test_turns_calls_answers_and_rewards_are_read(attempts: Attempts, tmp_path: Path) -> None:
    calls = [
        ToolCall("add", {"a": 1.0, "b": 2.0}),
        MalformedCall("add(", "no end"),
        ToolCall("raise_it", {}),
    ]
    play(attempts.next("Hostile"), [calls])
    assert recorded_passes(tmp_path / "journal") == [Position(1)]
    (one,) = read(tmp_path)
    assert (one.call, one.round, one.repetition, one.row) == ("actor.generate", 0, 0, 0)
    assert (one.prompt_id, one.sample, one.prompt) == (7, 0, "add")
    assert (one.ended_by, one.observation, len(one.seconds)) == ("EndToken", None, 3)
    first, last = one.view.turns
    assert last == ConversationTurn(1, "bye") and one.view.num_turns == 2
    assert (first.number, first.text) == (0, "say 0")
    assert first.calls[0] == ToolUse("add(a=1.0, b=2.0)", "3")
    assert first.calls[1] == ToolUse("add(", "error: no end", is_error=True)
    assert first.calls[2].call == "raise_it()" and first.calls[2].is_error


def test_a_limit_that_fired_is_read(attempts: Attempts, tmp_path: Path) -> None:
    play(attempts.next("Hostile", call_seconds=0.3), [[ToolCall("hang", {})]])
    (one,) = read(tmp_path)
    assert one.view.failure == (
        "ToolDeadline: the call hang({}) took longer than callSeconds = 0.3"
    )
    assert one.view.turns == (ConversationTurn(0, "say 0", (ToolUse("hang()", None),)),)
    assert one.ended_by == ""


def test_of_several_attempts_the_last_one_is_read(attempts: Attempts, tmp_path: Path) -> None:
    def adding(number: float) -> list[ToolCall]:
        return [ToolCall("add", {"a": number, "b": 0.0})]

    play(attempts.next("Hostile"), [adding(1.0), adding(2.0), adding(3.0)])
    attempts.settings = "changed"
    play(attempts.next("Hostile"), [adding(1.0), adding(5.0)], ends=False)
    (one,) = read(tmp_path)
    answers = [use.answer for turn in one.view.turns for use in turn.calls]
    assert answers == ["1", "5"], "the third turn belongs to the first attempt"
    assert one.ended_by == "", "so does its end"


def test_conversations_are_read_in_the_order_of_their_rows(
    attempts: Attempts, tmp_path: Path
) -> None:
    for row in (10, 2):
        play(attempts.next("IncrementEnv"), [], row=row)
    assert [(one.row, one.sample, one.ended_by) for one in read(tmp_path)] == [
        (2, 2, "EndToken"),
        (10, 10, "EndToken"),
    ]
