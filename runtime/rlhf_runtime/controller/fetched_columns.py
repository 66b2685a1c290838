"""Columns that the driver fetches from workers, for some rows of a batch."""

from __future__ import annotations

from collections.abc import Sequence

from rlhf_runtime.calls.inputs import BatchColumns
from rlhf_runtime.calls.requests import InputBatch
from rlhf_runtime.controller.batch import Batch
from rlhf_runtime.controller.results import wait_for
from rlhf_runtime.dataplane.columns import Rows
from rlhf_runtime.hooks import Hook


def fetch_columns(batch: Batch, names: Sequence[str], rows: Rows, poll: Hook) -> BatchColumns:
    """Wait for some columns of a batch, and fetch the shards with some of its rows.

    Args:
        batch: of the rows.
        names: of the columns.
        rows: in ascending order. Shards between the first and the last are fetched completely.
        poll: called every few seconds.
    """
    bounds = range(int(rows[0]), int(rows[-1]) + 1) if len(rows) else range(0)
    sources, references = batch.sources(names).for_rows(bounds)
    return BatchColumns(InputBatch(batch.shape, tuple(sources)), wait_for(references, poll))
