"""Thinned series keep their peaks; smoothed ones keep their level."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlhf_runtime.telemetry.plots import runs, smooth, thin

VALUES = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=300)


@given(values=VALUES, limit=st.integers(2, 60))
def test_thinning_keeps_ends_and_extremes(values: list[float], limit: int) -> None:
    points = list(enumerate(values))
    kept = thin(points, limit)
    assert len(kept) <= max(limit, 2) + 2
    assert kept[0] == points[0] and kept[-1] == points[-1]
    assert min(v for _, v in kept) == min(values)
    assert max(v for _, v in kept) == max(values)
    assert [step for step, _ in kept] == sorted({step for step, _ in kept})


def test_short_series_are_kept_whole() -> None:
    points = [(step, float(step)) for step in range(10)]
    assert thin(points, 10) == points


def test_thinning_keeps_a_gap_visible() -> None:
    points = [(step, math.nan if step == 500 else 1.0) for step in range(1000)]
    assert any(math.isnan(value) for _, value in thin(points, 20))


def test_runs_break_at_values_that_are_not_finite() -> None:
    points = [(1, 1.0), (2, math.nan), (3, math.inf), (4, 2.0), (5, 3.0), (6, math.nan)]
    assert runs(points) == [[(1, 1.0)], [(4, 2.0), (5, 3.0)]]
    assert runs([(1, math.nan)]) == []


def test_smoothing_is_the_mean_of_the_window() -> None:
    points = [(step, float(value)) for step, value in enumerate([0, 10, 20, 60, 40, 50])]
    naive = []
    for index in range(len(points)):
        window = [value for _, value in points[max(0, index - 2) : index + 3]]
        naive.append((index, sum(window) / len(window)))
    smoothed = smooth(points)
    assert [step for step, _ in smoothed] == [step for step, _ in naive]
    assert [value for _, value in smoothed] == pytest.approx([value for _, value in naive])


def test_smoothing_skips_what_is_not_finite() -> None:
    assert smooth([(1, 2.0), (2, math.nan), (3, 4.0)]) == [(1, 3.0), (3, 3.0)]
