"""Metrics of the conversations of a call."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from rlhf_runtime.environments.records import RecordCounts
from rlhf_runtime.environments.tool_call import MalformedCall
from rlhf_runtime.roles.conversations import ConversationRows

from .scripted import play


def rows_of(records: RecordCounts, **changes: Any) -> ConversationRows:
    loop: Any = SimpleNamespace(records=records)
    return ConversationRows(play(rows=40, **changes).conversations, loop)


def test_turns_calls_and_mismatches_are_counted() -> None:
    statistics = rows_of(RecordCounts(num_mismatches=2)).statistics
    num_turns, num_conversations = statistics.means["environment/turns"]
    assert num_turns > num_conversations == 40
    num_malformed, num_calls = statistics.means["environment/malformed_calls"]
    assert 0 < num_malformed < num_calls == statistics.means["environment/calls"][0]
    assert statistics.sums == {"environment/failed": 0.0, "environment/mismatches": 2.0}


def test_answers_that_are_errors_are_counted() -> None:
    num_errors, num_answers = rows_of(RecordCounts()).statistics.means["environment/call_errors"]
    turns = [turn for one in play(rows=40).conversations for turn in one.turns if turn.answers]
    assert num_answers == sum(len(turn.answers) for turn in turns)
    malformed = sum(isinstance(call, MalformedCall) for turn in turns for call in turn.calls)
    assert num_errors == malformed > 0


def test_the_first_failure_is_reported() -> None:
    report = rows_of(RecordCounts(), fails=frozenset((row, 0) for row in range(40))).report
    assert 0 < report.num_failed < report.num_episodes == 40
    assert report.first_failure == "too slow"
