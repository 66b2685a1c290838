"""Rows that are judged together, and those of them that are tokenized together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

from rlhf_runtime.data.rows import Row

CHUNK_ROWS = 1024
"""Rows of a chunk: a column that is in none of them does not exist."""
BATCH_CHARACTERS = 1 << 20
"""Of a batch: a tokenizer takes some hundred bytes for each token of the texts that it is given at
once, and is not interrupted."""


def chunks_of(rows: Iterable[Row]) -> Iterator[list[Row]]:
    """Rows in chunks of `CHUNK_ROWS`; the last one may be shorter."""
    iterator = iter(rows)
    while chunk := list(islice(iterator, CHUNK_ROWS)):
        yield chunk


def batches_of(chunk: Iterable[Row]) -> Iterator[list[Row]]:
    """A chunk in batches of at most `BATCH_CHARACTERS`, or of one row."""
    batch: list[Row] = []
    total = 0
    for row in chunk:
        size = num_characters(row)
        if batch and total + size > BATCH_CHARACTERS:
            yield batch
            batch, total = [], 0
        batch.append(row)
        total += size
    if batch:
        yield batch


def num_characters(value: Any) -> int:
    """Characters of all texts in a value of a row."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, Mapping):
        return sum(map(num_characters, value.values()))
    if isinstance(value, list | tuple):
        return sum(map(num_characters, value))
    return 0
