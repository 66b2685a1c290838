"""How long a preflight may take, and what it leaves to workers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from rlhf_runtime.data.rows import Row
from rlhf_runtime.rewards.pool import START_SECONDS


@dataclass(frozen=True)
class Limits:
    """Seconds after which the rest is left to workers, which check everything when they start."""

    rows_seconds: float | None
    """For the rows of a source. None: all are read, of builtin tasks, too, and of files that are
    read as a whole."""
    verifier_seconds: float
    """For the import of a verifier's module."""


WHOLE_BYTES = 64 << 20
"""Of a file that has to be read before its first row is there; of a larger one nothing is, where
time matters: it costs several times as much memory, and no clock ends it."""

QUICK = Limits(rows_seconds=2.0, verifier_seconds=10.0)
"""Before a run."""
THOROUGH = Limits(rows_seconds=None, verifier_seconds=START_SECONDS)
"""Where somebody asks."""


class RowLimit:
    """Ends batches of rows when some time is over, or when there are enough rows."""

    def __init__(
        self,
        seconds: float | None,
        enough: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """
        Args:
            seconds: from when the first batch is asked for. None: without an end.
            enough: rows. None: there is no such number.
            clock: gives seconds.
        """
        self._clock = clock
        self._seconds = seconds
        self._enough = enough
        self.num_read = 0
        """Rows of the batches that were given."""
        self.is_late = False
        """Whether there are rows that were not reached in time."""

    def __call__(self, batches: Iterable[list[Row]]) -> Iterator[list[Row]]:
        """The batches that are reached; the first one always is."""
        begun = self._clock()
        for batch in batches:
            if self._enough is not None and self.num_read >= self._enough:
                return
            is_over = self._seconds is not None and self._clock() >= begun + self._seconds
            if is_over and self.num_read:
                self.is_late = True
                return
            self.num_read += len(batch)
            yield batch
