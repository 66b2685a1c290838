"""The model, prompts and lengths of bench-rank, for both of its processes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rlhf_runtime.dataplane.columns import Column, pack

VOCABULARY = 32_000
HEAD_SIZE = 64
HEADS_PER_KEY_HEAD = 4


@dataclass(frozen=True)
class Load:
    """Sizes; lengths in tokens."""

    hidden: int
    layers: int
    rows: int
    prompt: int
    response: int
    rounds: int
    dtype: str
    """`bfloat16` or `float32`."""

    @property
    def heads(self) -> int:
        return self.hidden // HEAD_SIZE

    @property
    def key_heads(self) -> int:
        return max(1, self.heads // HEADS_PER_KEY_HEAD)

    @property
    def item_bytes(self) -> int:
        return 2 if self.dtype == "bfloat16" else 4

    @property
    def cache_bytes(self) -> int:
        """Keys and values of all sequences, and of a block more for each."""
        # All sequences run at once, on both sides: no side waits for free blocks.
        tokens = self.rows * (self.prompt + self.response + 64)
        return 2 * self.layers * self.key_heads * HEAD_SIZE * self.item_bytes * tokens


def rank_load(load: Load) -> Column:
    """Packed random prompts, the same for all loads of these sizes."""
    numbers = np.random.default_rng(0).integers(10, VOCABULARY, (load.rows, load.prompt))
    return pack(list(numbers.astype(np.int32)), np.int32)
