"""The model, prompts and lengths of bench-rank, for both of its processes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rlhf_runtime.dataplane.columns import Column, pack

FIRST_TOKEN = 10
"""Smaller ids are often special tokens."""


@dataclass(frozen=True)
class Load:
    """Sizes; lengths in tokens."""

    layers: int
    key_heads: int
    head_size: int
    vocabulary: int
    rows: int
    prompt: int
    response: int
    rounds: int
    dtype: str
    """`bfloat16` or `float32`."""

    @property
    def item_bytes(self) -> int:
        return 2 if self.dtype == "bfloat16" else 4

    @property
    def cache_bytes(self) -> int:
        """Keys and values of all sequences, and of a block more for each."""
        # All sequences run at once, on both sides: no side waits for free blocks.
        tokens = self.rows * (self.prompt + self.response + 64)
        return 2 * self.layers * self.key_heads * self.head_size * self.item_bytes * tokens


def rank_load(load: Load) -> Column:
    """Packed random prompts, the same for all loads of these sizes."""
    draw = np.random.default_rng(0)
    numbers = draw.integers(FIRST_TOKEN, load.vocabulary, (load.rows, load.prompt))
    return pack(list(numbers.astype(np.int32)), np.int32)
