"""Split the sequences of a rank into micro-batches of similar length."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rlhf_runtime.dataplane.columns import Rows


def cut_micro_batches(
    lengths: NDArray[np.integer], max_padded_tokens: int, units: NDArray[np.int64] | None = None
) -> list[Rows]:
    """Split positions into micro-batches of similar length and at most so many padded tokens.

    Rows are padded to the longest of their micro-batch. A unit longer than the limit is alone.
    Positions refer to `lengths`.

    Args:
        lengths: of the rows.
        max_padded_tokens: limit per micro-batch.
        units: the unit of each row; its rows stay together. None: every row is a unit.
    """
    if not len(lengths):
        return []
    own = np.arange(len(lengths)) if units is None else units
    _, unit_of, sizes = np.unique(own, return_inverse=True, return_counts=True)
    longest = np.ones(len(sizes), dtype=np.int64)
    np.maximum.at(longest, unit_of, lengths)
    # Units of similar length waste little padding.
    by_length = np.argsort(longest, kind="stable")
    starts = np.cumsum(sizes[by_length]) - sizes[by_length]
    begin, cuts = 0, []
    for start, size, length in zip(
        starts.tolist(), sizes[by_length].tolist(), longest[by_length].tolist(), strict=True
    ):
        if start > begin and (start + size - begin) * length > max_padded_tokens:
            cuts.append(start)
            begin = start
    order: Rows = np.lexsort((unit_of, longest[unit_of]))
    return np.split(order, cuts)
