"""A task of verifiers, in the process of a conversation.

The package's requirements are not those of our lock: `FAKE` has the names that the environment
uses. RLHF_TEST_VERIFIERS names a folder with verifiers 0.4, such as `uv pip install --target`
makes.
"""

from __future__ import annotations

import os
import textwrap
from pathlib import Path

import pytest

from rlhf_runtime.environments.episodes import Episodes
from rlhf_runtime.environments.results import Begun, Ended, FailureKind
from rlhf_runtime.environments.settings import EnvironmentSettings
from rlhf_runtime.environments.tool_call import ToolCall

from .conftest import LIMITS
from .test_episodes import play

EXAMPLES = Path(__file__).parents[3] / "examples" / "environments"
FAKE = """
    import importlib
    from types import SimpleNamespace

    class Task:
        def __class_getitem__(cls, data):
            return cls

        def __init__(self, data, config=None):
            self.data = data

        async def score(self, trace):
            for name in dir(self):
                function = getattr(self, name)
                if hasattr(function, "weight"):
                    trace.reward += function.weight * await function(trace)

    class Taskset:
        def __class_getitem__(cls, task):
            return cls

        def __init__(self, config):
            self.config = SimpleNamespace(task=None)

        def __iter__(self):
            return iter(self.load())

    class TaskData(SimpleNamespace):
        @property
        def prompt_text(self):
            return self.prompt

    class Trace:
        def __init__(self, task, agent):
            self.nodes, self.reward = [], 0.0

        @property
        def last_reply(self):
            sampled = [node.message for node in self.nodes if node.sampled]
            return sampled[-1].content

    def reward(weight):
        def mark(function):
            function.weight = weight
            return function
        return mark

    def load_taskset(config):
        module = importlib.import_module(config.id)
        return getattr(module, *module.__all__)(config)

    TasksetConfig = TraceTask = AgentInfo = AgentConfig = SimpleNamespace
    AssistantMessage = MessageNode = SimpleNamespace
"""
TASKSET = """
    import verifiers.v1 as vf

    class WordData(vf.TaskData):
        word: str

    class Spell(vf.Task[WordData]):
        @vf.reward(weight=1.0)
        async def is_right(self, trace: vf.Trace) -> float:
            return float(trace.last_reply == self.data.word[::-1])

        @vf.reward(weight=0.5)
        async def is_short(self, trace: vf.Trace) -> float:
            return float(len(trace.last_reply) <= len(self.data.word))

    class SpellBackward(vf.Taskset[Spell]):
        def load(self):
            for word in ("tree", "house"):
                data = WordData(prompt=f"Spell {word} backward.", word=word)
                yield Spell(data, self.config.task)

    __all__ = ["SpellBackward"]
"""


@pytest.fixture
def episodes(tmp_path: Path) -> Episodes:
    (tmp_path / "spelling_tasks.py").write_text(textwrap.dedent(TASKSET))
    package = os.environ.get("RLHF_TEST_VERIFIERS")
    if package is None:
        package = str(tmp_path / "packages")
        folder = tmp_path / "packages" / "verifiers" / "v1"
        folder.mkdir(parents=True)
        (folder / "__init__.py").write_text(textwrap.dedent(FAKE))
    settings = EnvironmentSettings(
        {"": "verifiers_task:VerifiersTask"}, {"taskset": "spelling_tasks"}, **LIMITS
    )
    return Episodes(settings, [str(EXAMPLES), str(tmp_path), package])


def answer(text: str) -> list[ToolCall]:
    return [ToolCall("answer", {"text": text})]


def test_the_last_answer_is_scored_by_all_rewards_of_the_task(episodes: Episodes) -> None:
    begun, acted, ended = play(episodes, {"task": 1}, answer("house!"), answer("esuoh"))
    assert begun == Begun("Spell house backward.") and ended == Ended(1.5)
    assert [one.answers for one in acted] == [("Score 0.00.",), ("Score 1.50.",)]


def test_a_row_without_such_a_task_fails(episodes: Episodes) -> None:
    begun, _, _ = play(episodes, {"task": 2}, answer("esuoh"))
    assert begun.failure is not None and begun.failure.kind is FailureKind.ENVIRONMENT_FAILED
