"""Conversations of one node with their environments: limits, processes, and the journal.

One process per live conversation, forked from a server that has imported the user's modules. A
process that ends is rebuilt once per action. All results are written before they are returned, so
that the next attempt reads them.

A conversation holds its place from `begin` to `end`, also while the model generates. So a caller
must not let a conversation that has begun wait for one that has not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from rlhf_runtime.environments.episode import NO_NOTES, Calls, Episode, EpisodeContext
from rlhf_runtime.environments.errors import EnvironmentsLost, InvalidEnvironment
from rlhf_runtime.environments.process_handle import ProcessHandle
from rlhf_runtime.environments.records import EpisodeRecords, Record, RecordCounts
from rlhf_runtime.environments.results import (
    Acted,
    Begun,
    Ended,
    EpisodeFailure,
    EpisodeKey,
    FailureKind,
)
from rlhf_runtime.environments.server_handle import START_SECONDS, ServerHandle
from rlhf_runtime.environments.settings import (
    ENVIRONMENT_COLUMN,
    ClassFacts,
    EnvironmentDescription,
    EnvironmentSettings,
)
from rlhf_runtime.environments.source_tools import tools_by_name, with_sources
from rlhf_runtime.environments.tool_source import ToolSource
from rlhf_runtime.journal.answers import AnswerJournal, CallScope

# Servers that one conversation may lose before it has a process.
MAX_SERVERS = 3


class Episodes:
    """The conversations of a node. All methods belong to one event loop."""

    def __init__(
        self,
        settings: EnvironmentSettings,
        python_path: Sequence[str] = (),
        journal: AnswerJournal | None = None,
        sources: Sequence[ToolSource] = (),
    ) -> None:
        """
        Args:
            settings: of the environments.
            python_path: further folders of the user's code.
            journal: of this process; None: results are not kept.
            sources: tools that do not run in the conversations' processes.
        """
        self._settings = settings
        self._python_path = python_path
        self._sources = sources
        # By tool; filled by `start`.
        self._by_tool: dict[str, ToolSource] = {}
        self._records = EpisodeRecords(journal)
        self._shared = EpisodeContext(settings, self._records, self._start_process, self._by_tool)
        self._places = asyncio.Semaphore(settings.concurrency)
        self._episodes: dict[EpisodeKey, Episode] = {}
        self._server: ServerHandle | None = None
        # One conversation at a time replaces a server that has ended.
        self._starting = asyncio.Lock()
        self._description: EnvironmentDescription | None = None

    @property
    def description(self) -> EnvironmentDescription:
        """Environments and tools, once `start` has returned."""
        assert self._description is not None, "start first"
        return self._description

    async def start(self, seconds: float = START_SECONDS) -> None:
        """Start the sources of tools and the server, and import the user's modules.

        Args:
            seconds: limit of the import.

        Raises:
            InvalidEnvironment: they cannot be used.
        """
        try:
            # Each to its end, so that `close` meets none that is still starting.
            started = await asyncio.gather(
                *(source.start() for source in self._sources), return_exceptions=True
            )
            for error in filter(None, started):
                raise error
            self._by_tool.update(tools_by_name(self._sources))
            await self._running_server(seconds)
        except BaseException:
            await self.close()
            raise

    async def begin(
        self, key: EpisodeKey, row: Mapping[str, Any], notes: Record = NO_NOTES
    ) -> Begun:
        """Begin a conversation; waits for a place. `end` must follow, also after a failure.

        Args:
            key: of the conversation.
            row: of the data; JSON values.
            notes: for readers of the journal; JSON values. No result depends on them.
        """
        assert key not in self._episodes, f"begun twice: {key}"
        await self._places.acquire()
        name = self.description.environment_of(row)
        facts = self.description.environments.get(name or "", ClassFacts({}))
        episode = Episode(key, row, name or "", facts, self._shared)
        self._episodes[key] = episode
        if name is None:
            return episode.fail(self._unknown_environment(row))
        try:
            return await episode.begin(notes)
        except BaseException:
            await self._forget(key)
            raise

    async def act(
        self, key: EpisodeKey, turn: int, calls: Calls, notes: Record = NO_NOTES
    ) -> Acted:
        """Make the calls of a turn.

        Calls are made in their order; async methods that follow one another run concurrently. Calls
        of other sources are made before those of the environment.

        Args:
            key: of a conversation that has begun.
            turn: its number; turns of a conversation come in rising order.
            calls: of the turn; malformed ones are answered with their problem.
            notes: see `begin`.

        Raises:
            JournalMismatch: an attempt with the same settings has made other calls here.
        """
        return await self._episodes[key].act(turn, calls, notes)

    async def end(self, key: EpisodeKey, reason: str, notes: Record = NO_NOTES) -> Ended:
        """End a conversation: ask for its reward, end its process, free its place.

        Args:
            key: of a conversation that has begun.
            reason: why it ends, for readers of the journal.
            notes: see `begin`.
        """
        episode = self._episodes[key]
        try:
            return await episode.end(reason, notes)
        finally:
            await self._forget(key)

    async def complete(self, call: CallScope) -> RecordCounts:
        """Wait until all results of a call are on the disk, and count them.

        Raises:
            CannotRecord: some could not be written.
        """
        return await asyncio.to_thread(self._records.complete, call)

    async def close(self) -> None:
        """End all processes."""
        server, self._server = self._server, None
        if server is not None:
            await server.close()
        await asyncio.gather(*(source.close() for source in self._sources))
        self._episodes.clear()

    def _unknown_environment(self, row: Mapping[str, Any]) -> EpisodeFailure:
        got = repr(row.get(ENVIRONMENT_COLUMN))
        return EpisodeFailure(
            FailureKind.ENVIRONMENT_FAILED,
            f"the row's column {ENVIRONMENT_COLUMN} names no environment: got {got}, allowed "
            f"{', '.join(self.description.environments)}; correct the row",
        )

    async def _forget(self, key: EpisodeKey) -> None:
        episode = self._episodes.pop(key)
        try:
            await episode.drop_process()
        finally:
            self._places.release()

    async def _start_process(self) -> ProcessHandle:
        """Fork a process for a conversation.

        Raises:
            EnvironmentsLost: the server ends again and again.
        """
        for _ in range(MAX_SERVERS - 1):
            server = await self._running_server()
            try:
                return ProcessHandle(server, await server.fork())
            except EnvironmentsLost:
                continue
        server = await self._running_server()
        return ProcessHandle(server, await server.fork())

    async def _running_server(self, seconds: float = START_SECONDS) -> ServerHandle:
        async with self._starting:
            if self._server is not None and self._server.is_alive:
                return self._server
            if self._server is not None:
                await self._server.close()
            # Kept before it is ready, so that `close` ends it.
            self._server = ServerHandle(self._settings, self._python_path)
            server, is_first = self._server, self._description is None
            try:
                own = await server.load(seconds)
                self._description = with_sources(own, self._by_tool, self._settings)
            except InvalidEnvironment as error:
                await server.close()
                if is_first:
                    raise
                # It could be used before, so the machine has failed.
                raise EnvironmentsLost(
                    f"conversations cannot go on: got {error}, allowed an environment that is "
                    "imported again; restore the node's files, or free its memory"
                ) from error
            except BaseException:
                await server.close()
                raise
            return server


def describe_environment(
    settings: EnvironmentSettings,
    python_path: Sequence[str] = (),
    seconds: float = START_SECONDS,
    sources: Sequence[ToolSource] = (),
) -> EnvironmentDescription:
    """Import a job's environments in a child process and describe them. Not within an event loop.

    Args:
        settings: of the environments.
        python_path: further folders of the user's code.
        seconds: limit of the import.
        sources: tools that do not run in the conversations' processes; started here, and closed.

    Raises:
        InvalidEnvironment: they cannot be used.
    """

    async def describe() -> EnvironmentDescription:
        episodes = Episodes(settings, python_path, sources=sources)
        await episodes.start(seconds)
        await episodes.close()
        return episodes.description

    return asyncio.run(describe())
