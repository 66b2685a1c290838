"""Awaits the results of async verifiers. Standard library only."""

from __future__ import annotations

from collections.abc import Awaitable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio


class ResultLoop:
    """Runs all coroutines of a process on one event loop. Use it as a context manager."""

    # One loop: clients and locks that a function keeps between batches belong to the loop that
    # they were made on.

    def __init__(self) -> None:
        self._resources = ExitStack()
        self._runner: asyncio.Runner | None = None

    def __enter__(self) -> ResultLoop:
        return self

    def __exit__(self, *_: object) -> None:
        self._resources.close()

    def wait_for(self, result: Awaitable[Any]) -> Any:
        """Return what an awaitable results in, or raise its error."""
        return self._start().run(_result_of(result))

    def _start(self) -> asyncio.Runner:
        if self._runner is None:
            # Imported here: most verifiers need none, and their processes start faster without.
            import asyncio

            self._runner = self._resources.enter_context(asyncio.Runner())
        return self._runner


async def _result_of(result: Awaitable[Any]) -> Any:
    return await result
