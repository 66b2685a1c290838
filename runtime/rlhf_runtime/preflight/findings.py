"""Findings: the results of a preflight."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from rlhf_api.errors import RlhfError, SeveralErrors
from rlhf_api.gathering import ErrorCollector


@dataclass
class Findings:
    """Errors, facts and omissions of a preflight."""

    gathered: ErrorCollector = field(default_factory=ErrorCollector)
    """Errors, which prevent a run."""
    facts: list[str] = field(default_factory=list)
    """Results, one sentence each."""
    unchecked: list[str] = field(default_factory=list)
    """Checks that are left to workers, with the reason, one sentence each."""

    @contextmanager
    def about(self, *location: str | int) -> Iterator[None]:
        """Collect an error of the body, located at a field of the manifest unless it names one."""
        with self.gathered.check():
            try:
                yield
            except RlhfError as error:
                for single in error.errors if isinstance(error, SeveralErrors) else [error]:
                    single.at(*location)
                raise
