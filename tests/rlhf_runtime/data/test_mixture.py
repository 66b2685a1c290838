"""Rows of several sources: counts against running sums, orders against sets."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlhf_runtime.data.mixture import MAX_PERIOD, Mixture, mixed_rows

WEIGHTS = st.lists(
    st.floats(0.01, 100).map(lambda weight: round(weight, 2)), min_size=1, max_size=5
)


def test_weights_that_divide_a_step_give_the_same_counts_to_all() -> None:
    mixture = Mixture((3, 1), 8)
    assert [mixture.counts(step).tolist() for step in range(3)] == [[6, 2]] * 3
    assert mixture.largest.tolist() == [6, 2]
    assert mixture.before(5).tolist() == [30, 10]


def test_remainders_take_turns() -> None:
    mixture = Mixture((1, 1, 1), 4)
    counts = [mixture.counts(step).tolist() for step in range(3)]
    assert sorted(counts) == [[1, 1, 2], [1, 2, 1], [2, 1, 1]]
    assert mixture.before(3).tolist() == [4, 4, 4]


def test_a_source_of_little_weight_gets_a_prompt_now_and_then() -> None:
    mixture = Mixture((99, 1), 8)
    given = [int(mixture.counts(step)[1]) for step in range(100)]
    assert sum(given) == 8 and max(given) == 1
    gaps = [after - before for before, after in pairwise(np.flatnonzero(given))]
    assert max(gaps) <= 2 * min(gaps), "spread evenly"


@given(weights=WEIGHTS, prompts=st.integers(1, 40), steps=st.integers(1, 60))
def test_counts_follow_the_weights(weights: list[float], prompts: int, steps: int) -> None:
    mixture = Mixture(weights, prompts)
    total = np.zeros(len(weights), dtype=np.int64)
    shares = prompts * np.asarray(weights) / sum(weights)
    for step in range(steps):
        assert mixture.before(step).tolist() == total.tolist()
        counts = mixture.counts(step)
        assert counts.sum() == prompts and (counts <= mixture.largest).all()
        assert (counts >= np.floor(shares - 1e-5)).all() and (
            counts <= np.ceil(shares + 1e-5)
        ).all()
        total += counts
    # The discrepancy of multiples of the golden ratio grows with the logarithm.
    assert np.abs(total - steps * shares).max() < 2 + np.log2(steps + 1)


def test_a_long_period_is_rounded_and_its_sum_stays() -> None:
    mixture = Mixture((0.1234567, 0.7654321, 0.3333333), 64)
    assert mixture.counts(123_456_789).sum() == 64
    whole = mixture.before(MAX_PERIOD) - mixture.before(0)
    assert whole.sum() == 64 * MAX_PERIOD
    exact = 64 * MAX_PERIOD * np.asarray([0.1234567, 0.7654321, 0.3333333]) / 1.2222221
    assert np.abs(whole - exact).max() <= 1


@given(
    sizes=st.lists(st.integers(1, 30), min_size=1, max_size=3),
    weights=st.lists(st.integers(1, 9), min_size=3, max_size=3),
    prompts=st.integers(1, 12),
    shuffle=st.booleans(),
)
def test_every_source_passes_through_its_own_epochs(
    sizes: list[int], weights: list[int], prompts: int, shuffle: bool
) -> None:
    mixture = Mixture(weights[: len(sizes)], prompts)
    sizes = [max(pair) for pair in zip(sizes, mixture.largest.tolist(), strict=True)]
    steps = [mixed_rows(step, mixture, sizes, shuffle, seed=7) for step in range(40)]
    assert all(len(set(rows.tolist())) == prompts for rows in steps), "no row twice in a step"
    begins = np.cumsum([0, *sizes])
    order = np.concatenate(steps)
    for first, end in pairwise(begins):
        own = order[(first <= order) & (order < end)] - first
        epochs = [own[at : at + end - first] for at in range(0, len(own), end - first)]
        for epoch in epochs:
            assert len(set(epoch.tolist())) == len(epoch), "every row once"
            if not shuffle:
                assert epoch.tolist() == list(range(len(epoch)))


def test_epochs_have_new_orders_and_sources_orders_of_their_own() -> None:
    mixture = Mixture((1, 1), 8)
    steps = np.concatenate([mixed_rows(step, mixture, (16, 16), True, 0) for step in range(8)])
    one, other = steps[steps < 16], steps[steps >= 16] - 16
    assert sorted(one[:16].tolist()) == list(range(16))
    assert one[:16].tolist() != one[16:].tolist()
    assert one[:16].tolist() != other[:16].tolist()


def test_sources_are_spread_over_a_step() -> None:
    rows = mixed_rows(0, Mixture((3, 1), 8), (30, 10), False, 0)
    assert rows.tolist() == [0, 1, 30, 2, 3, 4, 31, 5]


def test_a_source_with_fewer_rows_than_its_share_is_refused() -> None:
    with pytest.raises(ValueError, match=r"got \[5, 10\], allowed at least \[6, 2\]"):
        mixed_rows(0, Mixture((3, 1), 8), (5, 10), False, 0)
