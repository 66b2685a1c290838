"""The process that drives the environments of conversations. A Ray actor without torch."""

from __future__ import annotations

import json
from pathlib import Path

from rlhf_api.plan import GraphName
from rlhf_api.spec.job import RLHFJob
from rlhf_runtime.calls.episodes import Act, Begin, EpisodeId, EpisodeReply, EpisodeRequest
from rlhf_runtime.environments.episodes import Episodes
from rlhf_runtime.environments.from_manifest import environment_settings, tool_sources
from rlhf_runtime.environments.records import RecordCounts
from rlhf_runtime.environments.results import EpisodeKey
from rlhf_runtime.environments.settings import EnvironmentDescription
from rlhf_runtime.journal.answers import AnswerJournal, CallScope
from rlhf_runtime.journal.folder import Attempt, Position
from rlhf_runtime.python_path import PythonPath
from rlhf_runtime.telemetry.samples import MAX_PROMPT_CHARACTERS
from rlhf_runtime.telemetry.shortened_text import shorten
from rlhf_runtime.workers.activity import ActivityServer
from rlhf_runtime.workers.process import configure_process


class EnvironmentHost(ActivityServer):
    """Begins episodes, makes their calls, and asks for their rewards; many at a time."""

    def __init__(
        self,
        job: RLHFJob,
        log_file: Path,
        python_path: PythonPath,
        name: str,
        attempt: Attempt | None = None,
    ) -> None:
        """
        Args:
            job: the job.
            log_file: log of this process.
            python_path: the user's code and its packages.
            name: of this host.
            attempt: of the journal; None: no answers are kept.
        """
        configure_process(log_file, 1, python_path)
        super().__init__()
        journal = None if attempt is None else AnswerJournal(attempt, name)
        settings = environment_settings(job.spec)
        sources = tool_sources(job.spec, python_path.folders)
        # Its processes get this one's path, with the packages behind.
        self._episodes = Episodes(settings, python_path.code, journal, sources)

    async def start(self) -> EnvironmentDescription:
        """Import the environments and connect to servers of tools; return all tools.

        Raises:
            InvalidEnvironment: they cannot be used.
        """
        await self._episodes.start()
        return self._episodes.description

    async def ask(self, request: EpisodeRequest) -> EpisodeReply:
        """Answer a request about a conversation.

        Raises:
            JournalMismatch: an earlier attempt has made other calls.
            EnvironmentsLost: processes of conversations cannot be started.
            ToolsChanged: a server's tools are not those of the prompts.
        """
        key, action = EpisodeKey(_scope(request.episode), request.episode.row), request.action
        if isinstance(action, Begin):
            row = json.loads(action.record)
            prompt = shorten(row["prompt"], MAX_PROMPT_CHARACTERS)
            notes = {"prompt_id": action.prompt_id, "sample": action.sample, "prompt": prompt}
            return await self._episodes.begin(key, row["record"], notes)
        if isinstance(action, Act):
            notes = {"text": action.text}
            return await self._episodes.act(key, action.turn, action.calls, notes)
        notes = {"num_turns": action.num_turns, "text": action.text}
        return await self._episodes.end(key, action.reason.value, notes)

    async def complete(self, episode: EpisodeId) -> RecordCounts:
        """Wait until the journal has all results of a conversation's call; count them.

        Raises:
            CannotRecord: the journal cannot be written.
        """
        return await self._episodes.complete(_scope(episode))

    async def close(self) -> None:
        """End all episodes, and connections to servers."""
        await self._episodes.close()


def _scope(episode: EpisodeId) -> CallScope:
    position = Position(episode.step, episode.graph is GraphName.EVALUATION)
    return CallScope(position, episode.repetition, episode.call, episode.round)
