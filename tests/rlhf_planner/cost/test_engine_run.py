"""Runs of an engine, against one that decodes token by token."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlhf_planner.cost.micro_batches import Lengths

from .engine_run import Row, run_engine, spread_lengths

rows = st.lists(st.builds(Row, st.integers(0, 9), st.integers(1, 12)), min_size=1, max_size=8)


def step_seconds(running: float, cached_tokens: float) -> float:
    return 1.0 + 0.25 * running + 0.01 * cached_tokens


def token_by_token(given_rows: list[Row], concurrent: int) -> list[float]:
    """Ends of rows; a step counts the token that it adds by half."""
    left = [row.left_tokens for row in given_rows]
    ends, now = [0.0] * len(left), 0.0
    while any(left):
        running = [index for index, each in enumerate(left) if each][:concurrent]
        cached = sum(
            row.cached_tokens + row.left_tokens - left[index]
            for index, row in enumerate(given_rows)
            if index in running
        )
        now += step_seconds(len(running), cached + len(running) / 2)
        for index in running:
            left[index] -= 1
            ends[index] = now
    return ends


@given(rows, st.integers(1, 9))
def test_rows_end_when_the_last_of_their_tokens_is_there(
    given_rows: list[Row], concurrent: int
) -> None:
    run = run_engine(given_rows, concurrent, step_seconds)
    assert run.ends == pytest.approx(token_by_token(given_rows, concurrent))


def test_a_row_that_waited_has_fewer_tokens_at_a_time() -> None:
    """One at a time, 1 s for each token: the second begins at 2 s and has half a token at 2.5."""
    run = run_engine([Row(0, 2), Row(0, 4)], 1, lambda running, cached: 1.0)
    assert run.ends == (2, 6)
    assert [run.generated_tokens(1, at) for at in (0, 1, 2, 2.5, 4, 6)] == [0, 0, 0, 0.5, 2, 4]


@given(st.floats(1, 100), st.floats(1, 4), st.integers(1, 300))
def test_spread_lengths_are_as_the_distribution_is(mean: float, ratio: float, number: int) -> None:
    lengths = Lengths(mean, mean * ratio)
    in_turn = spread_lengths(lengths, number)
    spread = sorted(in_turn, reverse=True)
    assert all(0 < each <= lengths.maximum for each in spread)
    assert sum(spread) / number == pytest.approx(mean, rel=0.6 / number**0.5)
    if ratio > 1.1:
        middle = spread[number // 2]
        assert lengths.survival(middle) == pytest.approx((number // 2 + 0.5) / number)


def test_equal_lengths_are_all_the_maximum() -> None:
    assert spread_lengths(Lengths(7, 7), 3) == (7, 7, 7)


def test_long_and_short_rows_follow_each_other() -> None:
    """So that a tenth of the rows, wherever it is, is nearly as long as all."""
    spread = spread_lengths(Lengths(100, 800), 500)
    for first in range(0, 500, 50):
        assert sum(spread[first : first + 50]) / 50 == pytest.approx(100, rel=0.1)
