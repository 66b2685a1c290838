"""The findings of a preflight, and its time limits."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from rlhf_api.error_collector import ErrorCollector
from rlhf_api.errors import RlhfError, SeveralErrors
from rlhf_runtime.data.files import Row
from rlhf_runtime.rewards.pool import START_SECONDS


@dataclass
class Findings:
    """Errors, facts and omissions of a preflight."""

    gathered: ErrorCollector = field(default_factory=ErrorCollector)
    """Errors, which prevent a run."""
    facts: list[str] = field(default_factory=list)
    """Results, one sentence each."""
    warnings: list[str] = field(default_factory=list)
    """Things that are valid and probably not meant, one sentence each."""
    unchecked: list[str] = field(default_factory=list)
    """Checks that are left to workers, with the reason, one sentence each."""

    @contextmanager
    def about(self, *location: str | int) -> Iterator[None]:
        """Collect an error of the body, located at a field of the manifest unless it names one."""
        with self.gathered.check():
            try:
                yield
            except RlhfError as error:
                # Users see several errors at once, each with its own field.
                for single in error.errors if isinstance(error, SeveralErrors) else [error]:
                    single.at(*location)
                raise


@dataclass(frozen=True)
class Limits:
    """How much is checked; the rest is left to workers, which check everything at their start."""

    rows_seconds: float | None
    """Limit per source of rows, in seconds. None: check all rows, also of builtin tasks and of
    files that cannot be read row by row."""
    verifier_seconds: float
    """Limit for the import of a verifier's module."""
    tries_rewards: bool = False
    """True: verifiers and services score responses to some rows, and conversations with
    environments are played."""


# Maximum size of a file that must be read completely before its first row, under a time limit.
# Parsing such a file takes several times its size in memory, and cannot be interrupted.
MAX_UNSTREAMED_BYTES = 64 << 20

# Limits before a run.
QUICK = Limits(rows_seconds=2.0, verifier_seconds=10.0)
# Limits of an explicit check.
THOROUGH = Limits(rows_seconds=None, verifier_seconds=START_SECONDS, tries_rewards=True)


class RowLimit:
    """Ends an iteration over batches of rows after some time, or after enough rows."""

    def __init__(
        self,
        seconds: float | None,
        enough: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """
        Args:
            seconds: after the request of the first batch. None: no limit.
            enough: number of rows. None: no limit.
            clock: returns seconds.
        """
        self._clock = clock
        self._seconds = seconds
        self._enough = enough
        # Rows so far.
        self.num_read = 0
        # True if the time limit left rows out.
        self.is_late = False

    def __call__(self, batches: Iterable[list[Row]]) -> Iterator[list[Row]]:
        """The batches within the limits; always the first one."""
        begun = self._clock()
        for batch in batches:
            if self._enough is not None and self.num_read >= self._enough:
                return
            is_over = self._seconds is not None and self._clock() >= begun + self._seconds
            # Without any row there would be nothing to check.
            if is_over and self.num_read:
                self.is_late = True
                return
            self.num_read += len(batch)
            yield batch
