"""Curves of measured seconds: against a naive interpolation, and functions that are known."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from rlhf_planner.problem.profile import BlockCurves, Curve, block_curves, curve_of

CURVE = Curve(at=(10, 20, 40), seconds=(1, 3, 4))


@st.composite
def curves(draw: st.DrawFn) -> Curve:
    """Of two to six points, that rise and do not fall."""
    steps = draw(st.lists(st.tuples(st.integers(1, 50), st.integers(0, 9)), min_size=2, max_size=6))
    at, seconds = 0, 0
    points = []
    for wide, high in steps:
        at, seconds = at + wide, seconds + high
        points.append((float(at), float(seconds)))
    return Curve(at=tuple(p[0] for p in points), seconds=tuple(p[1] for p in points))


def naive(curve: Curve, at: float) -> float:
    """By the two-point form of whichever segment is meant."""
    points = list(zip(curve.at, curve.seconds, strict=True))
    inside = [
        pair for pair in zip(points, points[1:], strict=False) if pair[0][0] <= at <= pair[1][0]
    ]
    beyond = points[:2] if at < points[0][0] else points[-2:]
    (x0, y0), (x1, y1) = inside[0] if inside else beyond
    return max(0.0, (y0 * (x1 - at) + y1 * (at - x0)) / (x1 - x0))


def test_values_by_hand() -> None:
    """Between points, at them, beyond the last by 1 second for 20, before the first by 2 for 10."""
    assert [CURVE(at) for at in (10, 15, 20, 30, 40)] == [1, 2, 3, 3.5, 4]
    assert CURVE(60) == 5
    assert CURVE(7.5) == 0.5
    assert CURVE(0) == 0


@given(curves(), st.floats(0, 400))
def test_a_curve_is_the_naive_interpolation(curve: Curve, at: float) -> None:
    assert curve(at) == pytest.approx(naive(curve, at), abs=1e-9)


@given(curves(), st.floats(0, 400), st.floats(0, 400))
def test_more_never_takes_less(curve: Curve, one: float, other: float) -> None:
    low, high = sorted((one, other))
    assert curve(low) <= curve(high) + 1e-9


def test_of_several_measurements_the_least_counts() -> None:
    """5 at 10 was disturbed: 20 took 3 only."""
    found = curve_of([(10, 7), (10, 5), (20, 3), (40, 4)])
    assert found == Curve(at=(10, 20, 40), seconds=(3, 3, 4))
    assert curve_of([(2, -1), (1, -2)]) == Curve(at=(1, 2), seconds=(0, 0))


def test_a_single_point_holds_everywhere() -> None:
    """Though it was measured twice."""
    found = curve_of([(8, 2.0), (8, 1.5)])
    assert [found(at) for at in (0, 8, 100)] == [1.5, 1.5, 1.5]
    assert curve_of([(0, -1.0)])(5) == 0


SECONDS = st.floats(-1, 1)
COUNTS = st.integers(0, 4).map(float)


@given(st.lists(st.tuples(COUNTS, SECONDS), min_size=1))
def test_whatever_was_measured_is_a_curve(samples: list[tuple[float, float]]) -> None:
    """Falling, below 0, repeated or alone: nothing measured exceeds what a later point took."""
    found = curve_of(samples)
    for at, seconds in samples:
        assert found(at) <= max(0.0, seconds) + 1e-12


@given(st.lists(st.tuples(COUNTS, COUNTS, SECONDS), min_size=1))
def test_whatever_was_measured_of_a_block_are_curves(
    samples: list[tuple[float, float, float]],
) -> None:
    found = block_curves(samples)
    assert found.pairs(0) == 0
    assert all(found(tokens, pairs) >= 0 for tokens, pairs, _ in samples)


def test_pairs_take_nothing_where_no_tokens_have_two_numbers_of_them() -> None:
    """Also where one was measured twice, with other seconds."""
    found = block_curves([(8, 64, 1.0), (8, 64, 3.0), (16, 128, 2.0)])
    assert found.pairs(1000) == 0
    assert found.tokens == Curve(at=(8, 16), seconds=(1, 2))


@given(st.floats(0, 1), st.floats(1e-4, 1), st.floats(1e-6, 1e-3))
def test_a_block_is_told_apart_into_tokens_and_pairs(
    always: float, token: float, pair: float
) -> None:
    """Seconds that are linear in both are found again, within and beyond what was measured."""
    points = [(16, 128), (64, 1024), (1024, 16384), (1024, 65536), (1024, 524288), (4096, 65536)]
    rows = [(n, p, always + token * n + pair * p) for n, p in points]
    found = block_curves(rows)
    for tokens, pairs in [(32, 400), (1024, 100_000), (9000, 1e6), (4096, 0)]:
        assert found(tokens, pairs) == pytest.approx(always + token * tokens + pair * pairs)


def test_pairs_of_nothing_take_nothing() -> None:
    found = block_curves([(8, 8, 1.0), (8, 16, 2.0), (4, 0, 0.5)])
    assert isinstance(found, BlockCurves) and found.pairs(0) == 0


@pytest.mark.parametrize(
    ("at", "seconds"),
    [((1,), (1,)), ((1, 1), (1, 2)), ((1, 2), (2, 1)), ((1, 2), (1, 2, 3)), ((-1, 2), (0, 1))],
)
def test_what_is_no_curve_is_refused(at: tuple[float, ...], seconds: tuple[float, ...]) -> None:
    with pytest.raises(ValidationError):
        Curve(at=at, seconds=seconds)
