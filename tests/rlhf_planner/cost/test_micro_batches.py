"""Micro-batches by hand, and against those that the runtime cuts."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlhf_planner.cost.micro_batches import (
    CallRows,
    Lengths,
    micro_batches,
    responses_per_sequence,
)
from rlhf_runtime.dataplane.micro_batches import cut_micro_batches as cut
from rlhf_runtime.engines.packing import group_into_sequences
from rlhf_sizing.costs import MASKED_COST, SequenceCost

from .simple import equal

COST = SequenceCost(4096)


def draw(lengths: Lengths, number: int, seed: int) -> np.ndarray:
    """Lengths of that distribution."""
    values = np.random.default_rng(seed).random(number)
    if lengths.exponent == 0:
        return np.full(number, int(lengths.maximum))
    drawn = lengths.maximum * (1 - values ** (1 / lengths.exponent))
    return np.maximum(1, drawn).astype(np.int64)


def test_equal_rows_by_hand() -> None:
    """64 rows of 100 tokens over 2 updates and 4 replicas: 8 each, 3 at once."""
    batch = CallRows(64, equal(40), equal(60))
    found = micro_batches(batch, 2, 4, 300, 0, COST)
    assert found.number == 3
    assert found.tokens == pytest.approx(800 / 3)
    assert found.pairs == pytest.approx(8 * 100**2 / 2 / 3)
    assert found.predicted == pytest.approx(8 * 60 / 3)
    assert micro_batches(batch, 2, 5, 300, 0, COST).tokens == pytest.approx(700 / 3)  # 7 of 6.4


def test_sequences_longer_than_a_micro_batch_are_alone() -> None:
    found = micro_batches(CallRows(5, equal(40), equal(60)), 1, 1, 50, 0, COST)
    assert (found.number, found.tokens) == (5, pytest.approx(100))


def test_one_micro_batch_is_padded_to_the_longest() -> None:
    lengths = Lengths(50, 100)
    found = micro_batches(CallRows(9, equal(10), lengths), 1, 1, 10**6, 0, COST)
    assert found.number == 1
    assert found.tokens == pytest.approx(9 * (10 + 90))  # 9 / 10 of the maximum


@pytest.mark.parametrize("rows", [16, 64, 256])
@pytest.mark.parametrize("limit", [4096, 16384])
@pytest.mark.parametrize(
    "response", [Lengths(1024, 1024), Lengths(900, 1024), Lengths(512, 1024), Lengths(200, 1024)]
)
def test_they_are_about_those_that_the_runtime_cuts(
    response: Lengths, limit: int, rows: int
) -> None:
    """Padded tokens and number, on average over samples: within 15 %, and one and a half."""
    prompt = Lengths(200, 400)
    found = micro_batches(CallRows(rows, prompt, response), 1, 1, limit, 0, COST)
    padded, numbers = [], []
    for seed in range(20):
        lengths = draw(prompt, rows, seed) + draw(response, rows, seed + 100)
        parts = cut(lengths, limit)
        numbers.append(len(parts))
        padded.append(sum(len(part) * lengths[part].max() for part in parts))
    assert found.tokens * found.number == pytest.approx(np.mean(padded), rel=0.15)
    assert found.number == pytest.approx(np.mean(numbers), rel=0.15, abs=1.5)


@pytest.mark.parametrize("prompt", [50, 400, 1000, 4000])
@pytest.mark.parametrize("response", [20, 200, 1000])
@pytest.mark.parametrize("responses", [1, 4, 8])
@pytest.mark.parametrize("limit", [2048, 8192])
@pytest.mark.parametrize("masked_cost", MASKED_COST.values())
def test_as_many_responses_share_a_prompt_as_in_the_runtime(
    prompt: int, response: int, responses: int, limit: int, masked_cost: float
) -> None:
    """Of equal lengths exactly as many; of an odd number the average."""
    sequences = group_into_sequences(
        np.arange(responses),
        np.full(responses, prompt, dtype=np.int32),
        np.full(responses, response, dtype=np.int32),
        np.zeros(responses, dtype=np.int64),
        SequenceCost(1024, masked_cost),
        limit,
    )
    found = responses_per_sequence(
        prompt, response, responses, SequenceCost(1024, masked_cost), limit
    )
    assert found == responses / len(sequences)


def test_shared_prompts_are_computed_once_and_cost_their_mask() -> None:
    """8 responses of 50 tokens to 1000: one sequence of 1400, every pair of which is computed."""
    batch = CallRows(16, equal(1000), equal(50), rows_per_prompt=8)
    found = micro_batches(batch, 1, 1, 100000, 8192, COST)
    assert found.tokens == pytest.approx(2 * 1400)
    assert found.pairs == pytest.approx(2 * 1400**2)
    assert found.predicted == pytest.approx(16 * 50)
    slow = micro_batches(batch, 1, 1, 100000, 8192, COST._replace(masked_cost=2.0))
    assert slow == found._replace(pairs=2 * found.pairs)
    alone = micro_batches(batch, 1, 1, 100000, 0, COST._replace(masked_cost=2.0))
    assert alone.tokens == pytest.approx(16 * 1050)
    assert alone.pairs == pytest.approx(16 * 1050**2 / 2)


@given(
    st.integers(1, 400),
    st.integers(1, 3000),
    st.floats(1, 8),
    st.integers(1, 16),
    st.integers(256, 20000),
)
def test_more_rows_or_longer_ones_are_more_tokens(
    rows: int, mean: int, ratio: float, data: int, limit: int
) -> None:
    def tokens(rows: int, mean: float) -> float:
        batch = CallRows(rows, equal(100), Lengths(mean, mean * ratio))
        found = micro_batches(batch, 1, data, limit, 0, COST)
        assert found.number >= 1
        return found.tokens * found.number

    least = tokens(rows, mean) * (1 - 1e-9)
    assert tokens(rows + data, mean) >= least
    assert tokens(rows, mean * 1.1) >= least
