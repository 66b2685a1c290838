"""What a preflight has found."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from rlhf_api.errors import RlhfError, SeveralErrors
from rlhf_api.gathering import ErrorCollector


@dataclass
class Findings:
    """Errors, and what else somebody may want to know."""

    gathered: ErrorCollector = field(default_factory=ErrorCollector)
    """What has to be mended first."""
    facts: list[str] = field(default_factory=list)
    """What was found, one sentence each."""
    unchecked: list[str] = field(default_factory=list)
    """What is left to workers, and why, one sentence each."""

    @contextmanager
    def about(self, *location: str | int) -> Iterator[None]:
        """Keep what is raised inside as about a field of the manifest, unless it names another."""
        with self.gathered.check():
            try:
                yield
            except RlhfError as error:
                for each in error.errors if isinstance(error, SeveralErrors) else [error]:
                    each.at(*location)
                raise
