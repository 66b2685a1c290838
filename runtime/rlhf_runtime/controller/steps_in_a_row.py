"""Counts consecutive steps with a problem, up to a limit."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class StepsInARow:
    """Consecutive steps with a problem."""

    limit: int
    count: int = 0

    def record(self, has_problem: bool) -> None:
        """Record the end of a step."""
        self.count = self.count + 1 if has_problem else 0

    @property
    def are_too_many(self) -> bool:
        """True if the limit is reached."""
        return self.count >= self.limit

    @property
    def begin_here(self) -> bool:
        """True after the first of them, at which users get a notice."""
        return self.count == 1
