"""References to columns in the object store, and how a worker resolves them."""

from __future__ import annotations

from collections.abc import Sequence

import ray

from rlhf_runtime.dataplane.columns import Column
from rlhf_runtime.workers.orders import ColumnRef


def fetch(refs: Sequence[ColumnRef]) -> Sequence[Column]:
    """Columns behind references; large ones are read-only arrays in shared memory."""
    columns: Sequence[Column] = ray.get(list(refs))
    return columns
