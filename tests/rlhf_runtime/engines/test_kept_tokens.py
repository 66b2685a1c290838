"""The encoding of the tokens that truncated sampling kept, against dense masks."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlhf_runtime.dataplane.columns import Column
from rlhf_runtime.engines.kept_tokens import KeptTokens, SequenceSets, join_sets
from rlhf_runtime.errors import GenerationFailed

from ...depth import examples
from ..kept_sets import encode, random_mask

CPU = torch.device("cpu")
# 3 words, the last one short; 1 word; a whole number of words.
VOCABULARIES = st.sampled_from([70, 5, 64])
LENGTHS = st.lists(st.integers(0, 6), min_size=1, max_size=4)


def batch_of(lengths: list[int], vocabulary: int, seed: int) -> tuple[Column, torch.Tensor]:
    tokens = torch.randint(
        vocabulary, (sum(lengths),), generator=torch.Generator().manual_seed(seed)
    )
    mask = random_mask(tokens, vocabulary, seed)
    return encode(mask, tokens, np.array(lengths, dtype=np.int32)), mask


def masks(kept: KeptTokens, own: range) -> torch.Tensor:
    return ~kept.bits(own, CPU).left_out(own)


@given(st.just([]) | LENGTHS, VOCABULARIES, st.integers(0, 99), st.data())
@settings(max_examples=examples(40), deadline=None)
def test_every_part_of_the_vocabulary_has_the_sets_of_its_tokens(
    lengths: list[int], vocabulary: int, seed: int, data: st.DataObject
) -> None:
    column, mask = batch_of(lengths, vocabulary, seed)
    kept = KeptTokens.from_column(column, np.array(lengths, dtype=np.int32))
    start = data.draw(st.integers(0, vocabulary))
    own = range(start, data.draw(st.integers(start, vocabulary)))
    assert torch.equal(masks(kept, own), mask[:, own.start : own.stop])
    # Any block of the part, and any of the tokens.
    first = data.draw(st.integers(own.start, own.stop))
    block = range(first, data.draw(st.integers(first, own.stop)))
    order = data.draw(st.permutations(range(len(mask))))
    chosen = torch.tensor(order[: len(mask) // 2], dtype=torch.long)
    found = ~kept.select(chosen).bits(own, CPU).left_out(block)
    assert torch.equal(found, mask[chosen][:, block.start : block.stop])


@given(LENGTHS, VOCABULARIES, st.integers(0, 99), st.data())
@settings(max_examples=examples(20), deadline=None)
def test_two_parts_of_responses_are_joined_row_by_row(
    lengths: list[int], vocabulary: int, seed: int, data: st.DataObject
) -> None:
    column, mask = batch_of(lengths, vocabulary, seed)
    firsts = [data.draw(st.integers(0, length)) for length in lengths]
    ends = np.cumsum(lengths)
    in_first = np.concatenate(
        [np.arange(n) < first for n, first in zip(lengths, firsts, strict=True)]
    ).astype(bool)
    tokens = mask.int().argmax(dim=1)  # any of each set
    parts, sizes = [], []
    for chosen, own in ((in_first, firsts), (~in_first, np.subtract(lengths, firsts))):
        sizes.append(np.array(own, dtype=np.int32))
        parts.append(encode(mask[chosen], tokens[chosen], sizes[-1]))
    joined = join_sets(parts[0], sizes[0], parts[1], sizes[1])
    assert joined.values.tolist() == column.values.tolist()
    assert joined.lengths is not None and column.lengths is not None
    assert joined.lengths.tolist() == column.lengths.tolist() and ends[-1] == len(mask)


def test_a_set_takes_the_smaller_form() -> None:
    """A vocabulary of 64,000 tokens: 2,000 words of bits."""
    sets = SequenceSets(64_000)
    for size in (1, 2_000, 2_001, 64_000):
        sets.add(np.arange(size), 0)
    row = sets.encode()
    assert row[:4].tolist() == [1, 2_000, -2_000, -2_000]
    assert len(row) == 4 + 1 + 3 * 2_000


@pytest.mark.parametrize("kept", [[], [3, 5], [7]])
def test_a_set_without_the_sampled_token_is_refused(kept: list[int]) -> None:
    with pytest.raises(GenerationFailed, match=f"got token 4 and a set of {len(kept)} kept"):
        SequenceSets(8).add(np.array(kept, dtype=np.int64), 4)


def test_sets_of_other_responses_are_noticed() -> None:
    column, _ = batch_of([3, 2], 70, 0)
    with pytest.raises(AssertionError, match="of other tokens"):
        KeptTokens.from_column(column, np.array([2, 3], dtype=np.int32))
