"""Sets of tokens that truncated sampling kept: their encoding in a column, and their bits.

A row of the column is the sets of one response: first an entry per token of the response, then the
sets one after the other. An entry n > 0 is a set of n token ids in ascending order, an entry -n is
a set of n words of bits, one bit per token of the vocabulary. Each set has the smaller form.
"""

# Measured for responses of 1,000 tokens and 150,000 token ids: 8 KB for sets of 1, 0.6 MB for sets
# of 1 to 1,000 (log-uniform), read and written in about a millisecond. Bits under zlib take as much
# space and 100 ms, ids under zlib half of it and 10 ms.

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from rlhf_runtime.dataplane.columns import Array, Column, pack
from rlhf_runtime.errors import GenerationFailed
from rlhf_runtime.numerics.kept_bits import KeptBits

Words = NDArray[np.int32]
WORD_BITS = 32


class SequenceSets:
    """Collects the sets of one sequence, token by token."""

    def __init__(self, vocabulary: int) -> None:
        """Start without tokens.

        Args:
            vocabulary: number of token ids.
        """
        self._num_words = -(-vocabulary // WORD_BITS)
        self._entries: list[int] = []
        self._sets: list[Words] = []

    def add(self, kept: NDArray[np.integer], token: int) -> None:
        """Add the set of the next token.

        Args:
            kept: ids of the set, ascending.
            token: the sampled token.

        Raises:
            GenerationFailed: the set does not have the sampled token.
        """
        # Called for each token: numpy's functions would take twice as long as its methods.
        position = int(kept.searchsorted(token))
        if position == len(kept) or kept[position] != token:
            raise GenerationFailed(
                f"the engine sampled a token that it had left out: got token {token} and a set of "
                f"{len(kept)} kept tokens, allowed one of the set; this is an error of the engine"
            )
        if len(kept) <= self._num_words:
            self._entries.append(len(kept))
            # A copy: the engine's array has the sets of all sequences.
            self._sets.append(np.array(kept, dtype=np.int32))
            return
        # Not kept for the next token: engines may have thousands of sequences.
        mask = np.zeros(self._num_words * WORD_BITS, dtype=np.bool_)
        mask[kept] = True
        self._entries.append(-self._num_words)
        self._sets.append(np.packbits(mask, bitorder="little").view("<i4"))

    def encode(self) -> Words:
        """Encode the row of the column."""
        return np.concatenate([np.array(self._entries, dtype=np.int32), *self._sets])


@dataclass(frozen=True)
class KeptTokens:
    """The sets of some tokens, encoded."""

    words: Array
    """Values of the column, int32."""
    starts: NDArray[np.int64]
    """Start of each token's set in `words`."""
    entries: Words
    """Entry of each token."""

    @staticmethod
    def from_column(column: Column, lengths: NDArray[np.int32]) -> KeptTokens:
        """The sets of all tokens of a batch.

        Args:
            column: the encoded sets of each row.
            lengths: number of tokens of each row's response.
        """
        # Empty arrays first, as there may be no rows.
        starts, entries = [np.zeros(0, dtype=np.int64)], [np.zeros(0, dtype=np.int32)]
        for begin, row, length in zip(column.starts(), column.runs(), lengths, strict=True):
            row_entries, row_starts = _read_row(row, int(length))
            entries.append(row_entries)
            starts.append(begin + row_starts)
        return KeptTokens(column.values, np.concatenate(starts), np.concatenate(entries))

    def select(self, tokens: torch.Tensor) -> KeptTokens:
        """Select tokens by position, int64[n], or by a mask, bool[n]; on the host."""
        chosen = tokens.numpy()
        return KeptTokens(self.words, self.starts[chosen], self.entries[chosen])

    def bits(self, own: range, device: torch.device) -> KeptBits:
        """Expand the sets to bits.

        Args:
            own: the part of the vocabulary to expand.
            device: for the result.
        """
        # Whole bytes, so that sets that are stored as bits are copied.
        first, last = own.start // 8, -(-own.stop // 8)
        bits = np.zeros((len(self.entries), last - first), dtype=np.uint8)
        for token in np.flatnonzero(self.entries < 0).tolist():
            start, count = int(self.starts[token]), -int(self.entries[token])
            stored = self.words[start : start + count].view(np.uint8)[first:last]
            bits[token, : len(stored)] = stored
        self._set_ids(bits, first * 8)
        return KeptBits(torch.from_numpy(bits).to(device), first * 8)

    def _set_ids(self, bits: NDArray[np.uint8], first: int) -> None:
        """Set the bits of sets that are stored as ids."""
        counts = np.maximum(self.entries, 0)
        ends = np.cumsum(counts, dtype=np.int64)
        # Positions of all ids in `words`, set after set.
        positions = np.repeat(self.starts - ends + counts, counts) + np.arange(int(counts.sum()))
        tokens = np.repeat(np.arange(len(counts)), counts)
        ids = self.words[positions].astype(np.int64) - first
        inside = (ids >= 0) & (ids < bits.shape[1] * 8)
        ids, tokens = ids[inside], tokens[inside]
        ones = np.left_shift(1, ids & 7).astype(np.uint8)
        np.bitwise_or.at(bits.reshape(-1), tokens * bits.shape[1] + (ids >> 3), ones)


def join_sets(
    first: Column,
    first_lengths: NDArray[np.int32],
    rest: Column,
    rest_lengths: NDArray[np.int32],
) -> Column:
    """Join the sets of two parts of each response.

    Args:
        first: encoded sets of the first parts.
        first_lengths: tokens of the first parts.
        rest: encoded sets of the other parts.
        rest_lengths: tokens of the other parts.
    """
    rows = zip(first.runs(), first_lengths, rest.runs(), rest_lengths, strict=True)
    joined = [
        join_rows([(one, int(count)), (other, int(rest_count))])
        for one, count, other, rest_count in rows
    ]
    return pack(joined, np.int32)


def single_sets(tokens: Words) -> Words:
    """Return the encoded sets of tokens that were not sampled: each is alone in its set."""
    joined: Words = np.concatenate([np.ones(len(tokens), dtype=np.int32), tokens])
    return joined


def join_rows(parts: Sequence[tuple[Array, int]]) -> Words:
    """Join the encoded sets of the parts of one response.

    Args:
        parts: encoded sets and number of tokens of each part.
    """
    entries = [part[:count] for part, count in parts]
    sets = [part[count:] for part, count in parts]
    joined: Words = np.concatenate([np.zeros(0, dtype=np.int32), *entries, *sets])
    return joined


def _read_row(row: Array, num_tokens: int) -> tuple[Words, NDArray[np.int64]]:
    """The entries of a row, and the start of each set in the row."""
    entries = row[:num_tokens].astype(np.int32)
    sizes = np.abs(entries).astype(np.int64)
    assert num_tokens + int(sizes.sum()) == len(row), "the sets are those of other tokens"
    return entries, num_tokens + np.cumsum(sizes) - sizes
