"""Ticks are round, few, and inside the axis."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlhf_runtime.telemetry.plots import (
    EXTENT,
    Scale,
    byte_label,
    byte_ticks,
    fit_scale,
    integer_ticks,
    nice_ticks,
    step_scale,
    tick_label,
)


@given(
    low=st.floats(-1e9, 1e9),
    span=st.floats(1e-3, 1e9),
    most=st.integers(3, 8),
)
def test_ticks_are_inside_evenly_apart_and_not_too_many(low: float, span: float, most: int) -> None:
    scale = Scale(low, low + span)
    ticks = nice_ticks(scale, most)
    assert 1 <= len(ticks) <= most
    room = span * 1e-6
    assert all(scale.low - room <= tick <= scale.high + room for tick in ticks)
    gaps = [b - a for a, b in zip(ticks, ticks[1:], strict=False)]
    for gap in gaps:
        mantissa = gap / 10 ** math.floor(math.log10(gap) + 1e-6)
        assert min(abs(mantissa - nice) for nice in (1, 2, 5, 10)) < 1e-2


def test_ticks_by_hand() -> None:
    assert nice_ticks(Scale(0.0, 1.0)) == pytest.approx((0.0, 0.5, 1.0))
    assert nice_ticks(Scale(0.28, 0.97)) == pytest.approx((0.4, 0.6, 0.8))
    assert integer_ticks(Scale(0, 150)) == (0, 50, 100, 150)
    assert integer_ticks(Scale(0, 2)) == (0, 1, 2)


def test_labels_have_just_enough_decimals() -> None:
    assert [tick_label(t, (0.0, 0.05, 0.1)) for t in (0.0, 0.05, 0.1)] == ["0.00", "0.05", "0.10"]
    assert [tick_label(t, (0.0, 5e3, 1e4)) for t in (0.0, 5e3, 1e4)] == ["0", "5k", "10k"]
    assert [tick_label(t, (0.0, 2e-7, 4e-7)) for t in (0.0, 2e-7)] == ["0", "2e-7"]


def test_byte_ticks_are_round_in_their_unit() -> None:
    ticks = byte_ticks(Scale(0.0, 1.6 * 2**30))
    assert [byte_label(tick, ticks) for tick in ticks] == ["0", "0.5 GiB", "1.0 GiB", "1.5 GiB"]


def test_a_scale_has_room_and_ignores_what_is_not_finite() -> None:
    scale = fit_scale([1.0, math.nan, 3.0, math.inf])
    assert scale.low < 1.0 and scale.high > 3.0
    assert 0 < scale.at(1.0) < scale.at(3.0) < EXTENT


@pytest.mark.parametrize("values", [[], [math.nan], [0.0], [5.0, 5.0], [-2e-7]])
@pytest.mark.parametrize("floor", [None, 0.0])
def test_degenerate_values_still_make_a_scale(values: list[float], floor: float | None) -> None:
    scale = fit_scale(values, floor)
    assert scale.high > scale.low
    assert nice_ticks(scale)


def test_a_single_step_sits_in_the_middle() -> None:
    assert step_scale(7, 7).percent(7) == 50
