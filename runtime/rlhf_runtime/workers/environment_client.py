"""A rank's client of the environment host of its node."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ray

from rlhf_runtime.calls.episodes import EpisodeId, EpisodeReply, EpisodeRequest
from rlhf_runtime.environments.records import RecordCounts


class RayEpisodeClient:
    """Sends the requests of one generate call; an `EpisodeClient`."""

    def __init__(self, host: Any) -> None:
        """
        Args:
            host: handle of the environment host.
        """
        self._ask, self._complete = host.ask, host.complete
        self._num_sent = 0
        self._pending: dict[int, Any] = {}

    def send(self, request: EpisodeRequest) -> int:
        """Send a request; see `EpisodeClient`."""
        self._num_sent += 1
        self._pending[self._num_sent] = self._ask.remote(request)
        return self._num_sent

    def complete(self, episode: EpisodeId) -> RecordCounts:
        """Wait for the journal; see `EpisodeClient`.

        Raises:
            CannotRecord: the journal cannot be written.
        """
        counts: RecordCounts = ray.get(self._complete.remote(episode))
        return counts

    def take(
        self, tickets: Sequence[int], num_needed: int, seconds: float
    ) -> dict[int, EpisodeReply]:
        """Return the replies that are there; see `EpisodeClient`.

        Raises:
            RayError: the host has died.
            Exception: the host's own error.
        """
        references = [self._pending[ticket] for ticket in tickets]
        # With a limit of the needed ones Ray would return no others that are there.
        if seconds:
            ray.wait(references, num_returns=num_needed, timeout=seconds, fetch_local=False)
        done, _ = ray.wait(references, num_returns=len(references), timeout=0)
        arrived = set(done)
        taken = [ticket for ticket in tickets if self._pending[ticket] in arrived]
        values = ray.get([self._pending.pop(ticket) for ticket in taken])
        return dict(zip(taken, values, strict=True))
