"""Attempts at tasks of reasoning_gym, in the process of a conversation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rlhf_api.spec.row_sources import DataSource
from rlhf_runtime.data.rows import read_rows
from rlhf_runtime.data.source_setting import SourceSetting, Split
from rlhf_runtime.environments.episodes import Episodes
from rlhf_runtime.environments.results import Acted, Ended
from rlhf_runtime.environments.settings import EnvironmentSettings
from rlhf_runtime.environments.tool_call import ToolCall

from .conftest import LIMITS
from .test_episodes import play

pytest.importorskip("reasoning_gym", reason="an extra that needs a C compiler")

EXAMPLES = Path(__file__).parents[3] / "examples" / "environments"
TASK = {"": "reasoning_gym_task:ReasoningGymTask"}


def attempted(dataset: str, *answers: str) -> tuple[dict[str, Any], list[Acted], Ended]:
    """Play the first row of a dataset; RIGHT stands for its answer. Returns the row, too."""
    source = DataSource.model_validate({"reasoningGym": {"dataset": dataset, "size": 1}})
    (row,) = read_rows(source, SourceSetting(Split.TRAIN), seed=0)
    episodes = Episodes(EnvironmentSettings(TASK, {"attempts": 2}, **LIMITS), [str(EXAMPLES)])
    turns = [
        [ToolCall("answer", {"text": text.replace("RIGHT", row["answer"])})] for text in answers
    ]
    begun, acted, ended = play(episodes, row, *turns)
    assert begun.observation is None, "the prompt has the question"
    return dict(row), acted, ended


def test_a_right_answer_ends_the_task() -> None:
    _, acted, ended = attempted("chain_sum", "0.5", " RIGHT\n", "0.5")
    assert [one.answers for one in acted] == [
        ("Score 0.00 of 1.",),
        ("Right.",),
        ("The task is over.",),
    ]
    assert ended == Ended(1.0)


def test_an_answer_may_be_partly_right_and_attempts_end() -> None:
    row, acted, ended = attempted("spell_backward", "x", "y", "RIGHT")
    assert [one.answers[0] for one in acted][-1] == "The task is over."
    assert row["answer"] not in str(acted) and ended == Ended(0.0)
