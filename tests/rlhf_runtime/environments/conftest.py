"""Conversations of environments of a user's own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from rlhf_api.spec.checkpoint import JournalMode
from rlhf_runtime.environments.episodes import Episodes
from rlhf_runtime.environments.results import EpisodeKey
from rlhf_runtime.environments.settings import EnvironmentSettings
from rlhf_runtime.environments.tool_call import ToolCall
from rlhf_runtime.environments.tool_source import ToolRaised, ToolSource
from rlhf_runtime.journal.answers import AnswerJournal, CallScope
from rlhf_runtime.journal.folder import JournalFolder, PassSettings, Position

from ...waiting import wait_until
from .own_environments import write_module

LIMITS: dict[str, Any] = {
    **{"call_seconds": 60.0, "turn_seconds": 120.0, "episode_seconds": 600.0},
    **{"parallel_calls": 8, "concurrency": 32},
}


@pytest.fixture
def module(tmp_path: Path) -> Path:
    """A folder on the Python path with the module `my_environments`."""
    write_module(tmp_path)
    return tmp_path


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """No process may outlive its test."""
    before = set(psutil.Process().children(recursive=True))
    yield
    wait_until(
        lambda: set(psutil.Process().children(recursive=True)) <= before, 10, "the processes' end"
    )


def settings_of(environment: str, **settings: Any) -> EnvironmentSettings:
    """Settings of an environment of `my_environments`; without a name, of none."""
    entrypoints = {"": f"my_environments:{environment}"} if environment else {}
    return EnvironmentSettings(**{"entrypoints": entrypoints, **LIMITS, **settings})


def key_of(row: int = 0, step: int = 1) -> EpisodeKey:
    return EpisodeKey(CallScope(Position(step), 0, "actor.generate", 0), row)


@pytest.fixture
def make_episodes(module: Path) -> Callable[..., Episodes]:
    """Makes the conversations of an environment of `my_environments`."""

    def make(environment: str, **settings: Any) -> Episodes:
        return Episodes(settings_of(environment, **settings), [str(module)])

    return make


class Remote:
    """A tool of another source, with one argument."""

    def __init__(self, name: str) -> None:
        self.title = "another source"
        self.schemas = {name: {"type": "function", "function": {"name": name}}}
        self.asked: list[str] = []

    async def start(self) -> None:
        """It is always there."""

    async def close(self) -> None:
        """Nothing was started."""

    async def call(self, key: EpisodeKey, call: ToolCall) -> str:
        text = call.arguments["text"]
        self.asked.append(text)
        if text == "no":
            raise ToolRaised("refused")
        if text == "break":
            raise ConnectionError("gone")
        if text == "hang":
            await asyncio.Event().wait()
        return f"asked {text}"


class Attempts:
    """The conversations of a job whose workers are started again and again."""

    def __init__(self, module: Path, journal: Path) -> None:
        self._module = module
        self._journal = journal
        self._journals: list[AnswerJournal] = []
        self.settings, self.code = "same", "code"

    def next(
        self, environment: str, sources: Sequence[ToolSource] = (), **settings: Any
    ) -> Episodes:
        """The conversations of the next attempt, with the journal of earlier ones."""
        digests = PassSettings(self.settings, self.code)
        folder = JournalFolder(self._journal, digests, JournalMode.EXACT, print)
        attempt = folder.begin(0)
        assert attempt is not None
        journal = AnswerJournal(attempt, "environments 0")
        self._journals.append(journal)
        chosen = settings_of(environment, **settings)
        return Episodes(chosen, [str(self._module)], journal, sources)

    def close(self) -> None:
        """Close files that a process closes by its end."""
        for journal in self._journals:
            journal.call_answers(key_of().call, ()).sync()


@pytest.fixture
def attempts(module: Path, tmp_path: Path) -> Iterator[Attempts]:
    made = Attempts(module, tmp_path / "journal")
    yield made
    made.close()
