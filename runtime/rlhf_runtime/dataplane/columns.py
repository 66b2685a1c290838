"""A column of a batch: one value, or a run of values of its own length, for every row.

Owned by nobody: producers make columns, consumers take rows from them. Variable length stays packed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.generic]
Rows = NDArray[np.int64]


@dataclass(frozen=True)
class Column:
    """Values of some rows.

    Without `lengths`: `values[rows, ...]`, one entry per row. With `lengths[rows]`: `values[total]` holds
    the rows' runs one after the other, row i being `lengths[i]` long.
    """

    values: Array
    lengths: NDArray[np.int32] | None = None

    def __post_init__(self) -> None:
        if self.lengths is not None and int(self.lengths.sum()) != len(self.values):
            raise ValueError(
                f"lengths and values of a packed column disagree: got {int(self.lengths.sum())} "
                f"and {len(self.values)} values"
            )

    @property
    def num_rows(self) -> int:
        """Rows held."""
        return len(self.values) if self.lengths is None else len(self.lengths)

    @property
    def num_bytes(self) -> int:
        """Bytes of values and lengths."""
        return int(self.values.nbytes + (0 if self.lengths is None else self.lengths.nbytes))

    def take(self, rows: Rows) -> Column:
        """The given rows in the given order; the column itself if that is all of it."""
        if is_range(rows, self.num_rows):
            return self
        if self.lengths is None:
            return Column(self.values[rows])
        lengths = self.lengths[rows]
        return Column(self.values[run_positions(self.starts()[rows], lengths)], lengths)

    def starts(self) -> Rows:
        """Where each row's run begins in `values`."""
        assert self.lengths is not None
        return np.cumsum(self.lengths, dtype=np.int64) - self.lengths

    def runs(self) -> list[Array]:
        """The rows' runs as views."""
        assert self.lengths is not None
        return np.split(self.values, np.cumsum(self.lengths)[:-1]) if self.num_rows else []

    def texts(self) -> list[str]:
        """The rows of a packed uint8 column as texts."""
        return [run.tobytes().decode() for run in self.runs()]


def is_range(rows: Rows, size: int) -> bool:
    """Whether `rows` is 0, 1, ..., size - 1."""
    return len(rows) == size and bool((rows == np.arange(size)).all())


def run_positions(starts: Rows, lengths: NDArray[np.int32]) -> Rows:
    """Positions of runs with the given starts and lengths, one run after the other."""
    total = int(lengths.sum())
    ends = np.cumsum(lengths, dtype=np.int64)
    return np.arange(total, dtype=np.int64) + np.repeat(starts - (ends - lengths), lengths)


def pack(
    runs: Sequence[Sequence[int] | Sequence[float] | Array], dtype: type[np.generic]
) -> Column:
    """A packed column from one sequence per row."""
    lengths = np.fromiter((len(run) for run in runs), dtype=np.int32, count=len(runs))
    values = np.concatenate([np.asarray(run, dtype=dtype) for run in runs]) if runs else np.empty(0)
    return Column(values.astype(dtype, copy=False), lengths)


def pack_texts(texts: Sequence[str]) -> Column:
    """A packed uint8 column from texts."""
    encoded = [text.encode() for text in texts]
    lengths = np.fromiter(map(len, encoded), dtype=np.int32, count=len(encoded))
    return Column(np.frombuffer(b"".join(encoded), dtype=np.uint8), lengths)


def concatenate(columns: Sequence[Column]) -> Column:
    """The rows of several columns, one column after the other."""
    if len(columns) == 1:
        return columns[0]
    values = np.concatenate([column.values for column in columns])
    packed = [column.lengths for column in columns if column.lengths is not None]
    return Column(values, np.concatenate(packed) if packed else None)


def repeat_rows(column: Column, times: int) -> Column:
    """Every row `times` times, copies next to each other."""
    return column.take(np.repeat(np.arange(column.num_rows, dtype=np.int64), times))
