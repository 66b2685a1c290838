"""Columns of a batch: per row one value, or a run of values of its own length.

Columns are immutable: producers build them, consumers take rows from them. Variable length stays
packed. Pure numpy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.generic]
# Row numbers, or positions of rows.
Rows = NDArray[np.int64]

# Average length from which runs are copied one by one.
LONG_RUN = 128


@dataclass(frozen=True)
class Column:
    """Values of some rows.

    Without `lengths`: `values[rows, ...]`, one entry per row. With `lengths[rows]`: `values[total]`
    holds the rows' runs one after the other, row i being `lengths[i]` long.

    Raises:
        ValueError: lengths are negative, or do not sum to the number of values.
    """

    values: Array
    lengths: NDArray[np.int32] | None = None

    def __post_init__(self) -> None:
        if self.lengths is None:
            return
        total, shortest = int(self.lengths.sum()), int(self.lengths.min(initial=0))
        if total != len(self.values) or shortest < 0:
            raise ValueError(
                f"lengths and values of a packed column disagree: got lengths of {total} values in "
                f"all, the shortest {shortest}, and {len(self.values)} values; give every row the "
                "length of its run"
            )

    def __reduce__(self) -> tuple[Any, ...]:
        # Ray's pickler is quickest with calls.
        return Column, (self.values, self.lengths)

    @property
    def num_rows(self) -> int:
        return len(self.values) if self.lengths is None else len(self.lengths)

    @property
    def num_bytes(self) -> int:
        """Bytes of values and lengths."""
        return int(self.values.nbytes + (0 if self.lengths is None else self.lengths.nbytes))

    def take(self, rows: Rows) -> Column:
        """Return the requested rows in the requested order.

        All rows in order are the column itself, consecutive rows a view: neither is copied.

        Raises:
            IndexError: the column does not have a row.
        """
        if is_range(rows, self.num_rows):
            return self
        # Most ranks read neighbouring rows: these are views.
        if _are_neighbours(rows) and rows[0] >= 0 and rows[-1] < self.num_rows:
            return self._slice(int(rows[0]), int(rows[-1]) + 1)
        if self.lengths is None:
            return Column(self.values[rows])
        lengths = self.lengths[rows]
        return Column(_take_runs(self.values, self.starts()[rows], lengths), lengths)

    def starts(self) -> Rows:
        """Return the start of each row's run in `values`."""
        assert self.lengths is not None
        starts: Rows = np.cumsum(self.lengths, dtype=np.int64) - self.lengths
        return starts

    def runs(self) -> list[Array]:
        """Return the rows' runs as views."""
        return [self.values[start:end] for start, end in self._bounds()]

    def texts(self) -> list[str]:
        """Decode the rows of a packed uint8 column."""
        encoded = self.values.tobytes()
        return [encoded[start:end].decode() for start, end in self._bounds()]

    def _slice(self, begin: int, end: int) -> Column:
        if self.lengths is None:
            return Column(self.values[begin:end])
        lengths = self.lengths[begin:end]
        start = int(self.lengths[:begin].sum())
        return Column(self.values[start : start + int(lengths.sum())], lengths)

    def _bounds(self) -> list[tuple[int, int]]:
        assert self.lengths is not None
        starts = self.starts()
        return list(zip(starts.tolist(), (starts + self.lengths).tolist(), strict=True))


def is_range(rows: Rows, size: int) -> bool:
    """True if `rows` is 0, 1, ..., size - 1."""
    return len(rows) == size and (size == 0 or (int(rows[0]) == 0 and _are_neighbours(rows)))


def run_positions(starts: Rows, lengths: NDArray[np.int32]) -> Rows:
    """Return the positions of runs with these starts and lengths, one run after the other."""
    ends = np.cumsum(lengths, dtype=np.int64)
    positions: Rows = np.repeat(starts - ends + lengths, lengths)
    positions += np.arange(len(positions), dtype=np.int64)
    return positions


def pack(
    runs: Sequence[Sequence[int] | Sequence[float] | Array], dtype: type[np.generic]
) -> Column:
    """Pack one sequence per row into a column."""
    lengths = np.fromiter(map(len, runs), dtype=np.int32, count=len(runs))
    values = np.concatenate([np.empty(0, dtype), *(np.asarray(run, dtype) for run in runs)])
    return Column(values, lengths)


def pack_texts(texts: Sequence[str]) -> Column:
    """Encode texts as a packed uint8 column."""
    encoded = [text.encode() for text in texts]
    lengths = np.fromiter(map(len, encoded), dtype=np.int32, count=len(encoded))
    return Column(np.frombuffer(b"".join(encoded), dtype=np.uint8), lengths)


def concatenate(columns: Sequence[Column]) -> Column:
    """Concatenate the rows of several columns.

    Raises:
        ValueError: there are no columns, or some are packed and some are not.
    """
    if len(columns) == 1:
        return columns[0]
    packed = [column.lengths for column in columns if column.lengths is not None]
    if not columns or len(packed) not in (0, len(columns)):
        raise ValueError(
            f"columns of two forms cannot be joined: got {len(columns)} columns, {len(packed)} of "
            "them packed, allowed at least one, all packed or none; correct what made them"
        )
    values = np.concatenate([column.values for column in columns])
    return Column(values, np.concatenate(packed) if packed else None)


def concatenate_rows(columns: Sequence[Column], positions: Sequence[Rows]) -> Column:
    """Concatenate selected rows of columns that are not packed; each value is copied once.

    Raises:
        IndexError: a column does not have a row.
    """
    ends = np.cumsum([len(rows) for rows in positions])
    first = columns[0].values
    values = np.empty(
        (int(ends[-1]), *first.shape[1:]), np.result_type(*(c.values for c in columns))
    )
    for column, rows, part in zip(columns, positions, np.split(values, ends[:-1]), strict=True):
        # mode="clip" below does not check bounds.
        if len(rows) and not 0 <= int(rows.min()) <= int(rows.max()) < column.num_rows:
            raise IndexError(
                f"rows that a column does not have: got {int(rows.min())} to {int(rows.max())}, "
                f"allowed 0 to {column.num_rows - 1}; ask for rows of the same batch"
            )
        # With mode="raise" numpy would take them into a buffer first.
        np.take(column.values, rows, axis=0, out=part, mode="clip")
    return Column(values)


def repeat_rows(column: Column, times: int) -> Column:
    """Repeat every row `times` times, copies next to each other."""
    return column.take(np.repeat(np.arange(column.num_rows, dtype=np.int64), times))


def _are_neighbours(rows: Rows) -> bool:
    """True if every row follows its predecessor; False without rows."""
    count = len(rows)
    if count == 0 or int(rows[-1]) - int(rows[0]) != count - 1:
        return False
    return bool((rows[1:] - rows[:-1] == 1).all())


def _take_runs(values: Array, starts: Rows, lengths: NDArray[np.int32]) -> Array:
    total = int(lengths.sum())
    # Long runs are copied faster one by one, and without 8 bytes of position for every value.
    # Measured on 512 and 20,000 runs.
    if total < LONG_RUN * len(lengths) or total == 0:
        result: Array = values[run_positions(starts, lengths)]
        return result
    ends = (starts + lengths).tolist()
    return np.concatenate(
        [values[start:end] for start, end in zip(starts.tolist(), ends, strict=True)]
    )
