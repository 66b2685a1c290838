"""Metrics and notices of conversations."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rlhf_runtime.calls.reports import CallReport, ScoringReport, Statistics
from rlhf_runtime.controller.scoring import host_notices
from rlhf_runtime.conversations.conversation import Conversation, Turn
from rlhf_runtime.environments.records import RecordCounts
from rlhf_runtime.environments.results import EpisodeFailure, FailureKind
from rlhf_runtime.environments.tool_call import MalformedCall, ToolCall
from rlhf_runtime.roles.conversations import ConversationRows, journal_notices
from rlhf_runtime.telemetry.metric_table import METRICS

from ..conversations.scripted import ScriptedDialogue


def rows_of(counts: RecordCounts) -> ConversationRows:
    """Two conversations: one of two turns with three calls, and one that failed at once."""
    first, second = (
        Conversation(row, ScriptedDialogue(), "{}", np.array([1], dtype=np.int32), 9)
        for row in range(2)
    )
    first.turns = [
        Turn("a", 1, [ToolCall("add", {}), MalformedCall("add(", "no end")]),
        Turn("b", 2, [ToolCall("add", {})]),
    ]
    second.failure = EpisodeFailure(FailureKind.ENVIRONMENT_FAILED, "my own mistake")
    loop: Any = SimpleNamespace(records=counts)
    return ConversationRows([first, second], loop, ("tools may reach the network",))


def test_metrics_count_turns_calls_failures_and_mismatches() -> None:
    statistics = rows_of(RecordCounts(num_mismatches=1)).statistics
    assert statistics.means == {
        "environment/turns": (2.0, 2.0),
        "environment/calls": (3.0, 2.0),
        "environment/malformed_calls": (1.0, 3.0),
        "environment/call_errors": (0.0, 0.0),
    }
    assert statistics.sums == {"environment/failed": 1.0, "environment/mismatches": 1.0}
    assert all(name in METRICS for name in (*statistics.means, *statistics.sums))


@pytest.mark.parametrize(
    ("counts", "says"),
    [
        (RecordCounts(), []),
        (RecordCounts(num_read=3), ["answers of tools in steps that run again are read from"]),
        (RecordCounts(num_different=1), ["steps that run again have other conversations"]),
        (RecordCounts(num_mismatches=1), ["some conversations were rebuilt, and their tools"]),
        (RecordCounts(damage_notices=("a file has",)), ["a file has"]),
    ],
)
def test_users_read_what_the_journal_was_used_for(counts: RecordCounts, says: list[str]) -> None:
    texts = journal_notices(counts)
    assert len(texts) == len(says)
    assert all(text.startswith(say) for text, say in zip(texts, says, strict=True))


def test_notices_of_all_hosts_are_shown_once() -> None:
    episodes = rows_of(RecordCounts(num_read=3)).report
    scoring = ScoringReport(0, 1, 1, {}, {}, ("scores are read",))
    reports = [
        CallReport("actor.generate", Statistics(), (), 0, episodes=episodes),
        CallReport("actor.generate", Statistics(), (), 0, episodes=episodes),
        CallReport("reward.score", Statistics(), (), 0, scoring),
    ]
    assert episodes.notices[0] == "tools may reach the network"
    assert host_notices(reports) == (*episodes.notices, "scores are read")
