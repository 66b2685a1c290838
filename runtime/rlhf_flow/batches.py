"""BatchValue: what a step may do with a batch."""

from __future__ import annotations

from typing import Any, Protocol


class BatchValue(Protocol):
    """Columns over the same rows: symbolic while tracing, references while running."""

    @property
    def fields(self) -> frozenset[str]:
        """Names of the columns."""

    def __or__(self, other: Any, /) -> BatchValue:
        """Both's columns; where both have one, the other's. The rows must be the same."""
