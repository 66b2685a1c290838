"""BatchValue: the operations that a step may apply to a batch."""

from __future__ import annotations

from typing import Any, Protocol


class BatchValue(Protocol):
    """Columns over the same rows: symbolic during tracing, references during a run."""

    @property
    def column_names(self) -> frozenset[str]:
        """Names of the columns."""

    def __or__(self, other: Any, /) -> BatchValue:
        """The columns of both, which must have the same rows. The other's column wins if both have
        one."""

    def select(self, *names: str) -> BatchValue:
        """A batch of some columns.

        Raises:
            FlowError: the batch has no such column.
        """

    def rename(self, **names: str) -> BatchValue:
        """The same columns, some under other names: `rename(old="new")`.

        Raises:
            FlowError: a column that the batch does not have, or a new name that is in use or not
                allowed.
        """

    def broadcast(self, like: Any, /) -> BatchValue:
        """The columns with the rows of a batch that was generated from this one.

        Each row is repeated once per response: the score of one greedy response, say, for every
        sample of the prompt.

        Raises:
            FlowError: the other's rows do not come from these.
        """

    def concat(self, other: Any, /) -> BatchValue:
        """Append the rows of a batch with the same columns and equally many rows per prompt.

        Raises:
            FlowError: other columns, or another number of rows for a prompt.
        """
