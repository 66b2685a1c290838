"""How long a preflight may take, and what it leaves to workers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

from rlhf_runtime.data.prompts import CHUNK_ROWS
from rlhf_runtime.data.rows import Row
from rlhf_runtime.rewards.pool import START_SECONDS


@dataclass(frozen=True)
class Limits:
    """Seconds after which the rest is left to workers, which check everything when they start."""

    rows_seconds: float | None
    """For the rows of a source. None: all are read, of builtin tasks, too."""
    verifier_seconds: float
    """For the import of a verifier's module."""


QUICK = Limits(rows_seconds=2.0, verifier_seconds=10.0)
"""Before a run."""
THOROUGH = Limits(rows_seconds=None, verifier_seconds=START_SECONDS)
"""Where somebody asks."""


class SomeRows:
    """Rows until some time is over, or until there are enough."""

    def __init__(
        self,
        seconds: float | None,
        enough: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """
        Args:
            seconds: from the first row on. None: without an end.
            enough: rows. None: there is no such number.
            clock: gives seconds.
        """
        self._clock = clock
        self._seconds = seconds
        self._enough = enough
        self.num_read = 0
        self.is_late = False
        """Whether there are rows that were not reached in time."""

    def __call__(self, rows: Iterable[Row]) -> Iterator[Row]:
        """The rows that are reached; at least as many as are judged together."""
        begun = None
        for row in islice(rows, self._enough):
            begun = self._clock() if begun is None else begun
            is_over = self._seconds is not None and self._clock() >= begun + self._seconds
            if is_over and self.num_read >= CHUNK_ROWS:
                self.is_late = True
                return
            self.num_read += 1
            yield row
