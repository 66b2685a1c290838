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

    def select(self, *names: str) -> BatchValue:
        """These columns only.

        Raises:
            FlowError: one that is not there.
        """

    def rename(self, **names: str) -> BatchValue:
        """The same columns, some under other names: `rename(old="new")`.

        Raises:
            FlowError: one that is not there, or a name that is taken or that no field may have.
        """

    def broadcast(self, like: Any, /) -> BatchValue:
        """The columns with the rows of another batch that was generated from the same ones: every
        row as often as it was answered there, such as the score of one greedy response beside each
        of the prompt's samples.

        Raises:
            FlowError: the other's rows do not come from these.
        """

    def concat(self, other: Any, /) -> BatchValue:
        """These rows, then those of another batch with the same columns, and as many rows for each
        prompt.

        Raises:
            FlowError: other columns, or another number of rows for a prompt.
        """
