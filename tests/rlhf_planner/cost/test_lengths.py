"""Distributions of lengths against integrals and samples."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlhf_planner.cost.micro_batches import Lengths

STEPS = 20000
SHAPES = [
    *(Lengths(mean, 100) for mean in (100, 80, 50, 20, 4)),
    Lengths(80, 100, truncated=0.3),
    Lengths(20, 100, truncated=0.1),
    Lengths(10, 100, truncated=0.05),
]
"""Exponents 0, 1/4, 1, 4 and 24; and some with a share that is cut off."""


def integral(lengths: Lengths, of: Callable[[float], float]) -> float:
    """Of a function of t over all t, by the middles of small steps."""
    width = lengths.maximum / STEPS
    return sum(of((number + 0.5) * width) for number in range(STEPS)) * width


@pytest.mark.parametrize("lengths", SHAPES)
def test_moments_are_integrals_of_the_survival_function(lengths: Lengths) -> None:
    assert integral(lengths, lengths.survival) == pytest.approx(lengths.mean, rel=1e-4)
    square = integral(lengths, lambda t: 2 * t * lengths.survival(t))
    assert lengths.mean_square == pytest.approx(square, rel=1e-4)
    assert lengths.variance == pytest.approx(square - lengths.mean**2, abs=1e-2)


@pytest.mark.parametrize("number", [1, 2, 10, 500])
@pytest.mark.parametrize("lengths", SHAPES)
def test_the_longest_of_several(lengths: Lengths, number: int) -> None:
    """E[max] is the integral of the chance that not all have ended."""
    some = integral(lengths, lambda t: 1 - (1 - lengths.survival(t)) ** number)
    assert lengths.expected_maximum(number) == pytest.approx(some, rel=1e-3)


@pytest.mark.parametrize("lengths", SHAPES)
def test_samples_agree(lengths: Lengths) -> None:
    """X = T for the share that is cut off, else T (1 - V^(1/k)) with V uniform."""
    draw = random.Random(0)

    def sample() -> float:
        if lengths.exponent == 0 or draw.random() < lengths.truncated:
            return lengths.maximum
        return lengths.maximum * (1 - draw.random() ** (1 / lengths.exponent))

    samples = [sample() for _ in range(20000)]
    running = sum(each > 30 for each in samples)
    assert lengths.expected_running(20000, 30) == pytest.approx(running, abs=400)
    assert sum(each**2 for each in samples) / 20000 == pytest.approx(lengths.mean_square, rel=0.05)
    longest = [max(sample() for _ in range(50)) for _ in range(500)]
    assert lengths.expected_maximum(50) == pytest.approx(sum(longest) / 500, rel=0.03)


def test_all_longest_and_uniform_by_hand() -> None:
    longest, uniform = Lengths(100, 100), Lengths(50, 100)
    assert (longest.mean_square, longest.variance, longest.mean_age) == (10000, 0, 50)
    assert (longest.survival(0), longest.survival(99), longest.survival(100)) == (1, 1, 0)
    assert longest.expected_maximum(7) == 100
    assert uniform.mean_square == pytest.approx(10000 / 3)
    assert uniform.survival(25) == pytest.approx(0.75)
    assert uniform.expected_running(8, 75) == pytest.approx(2)
    assert uniform.expected_maximum(9) == pytest.approx(90)  # n / (n + 1) of the maximum


@pytest.mark.parametrize("start", [0.0, 10.0, 300.0])
@pytest.mark.parametrize("lengths", SHAPES)
def test_the_peak_of_what_is_held(lengths: Lengths, start: float) -> None:
    held = [
        lengths.survival(t) * (start + t)
        for t in (lengths.maximum * step / STEPS for step in range(STEPS))
    ]
    assert lengths.expected_peak(start) == pytest.approx(max(held), rel=1e-3)


def test_responses_that_are_cut_off_by_hand() -> None:
    """A tenth at the limit of 100, nine tenths evenly below it: 10 + 45 tokens on average."""
    lengths = Lengths(55, 100, truncated=0.1)
    assert lengths.exponent == pytest.approx(1)
    assert lengths.survival(50) == pytest.approx(0.1 + 0.9 * 0.5)
    assert lengths.survival(99.999) == pytest.approx(0.1, abs=1e-4)
    assert lengths.exceeded_by(0.55) == pytest.approx(50)
    assert lengths.exceeded_by(0.1) == lengths.exceeded_by(0.01) == 100
    # Nine in ten times the only one is not cut off, and of 50 tokens.
    assert lengths.expected_maximum(1) == pytest.approx(55)
    rest = lengths.after(50)
    assert rest.truncated == pytest.approx(0.1 / 0.55)
    assert (rest.maximum, rest.mean) == (50, pytest.approx((0.1 * 50 + 0.45 * 25) / 0.55))


@pytest.mark.parametrize("share", [0.5, -0.1, 1.0])
def test_more_that_are_cut_off_than_the_mean_allows_are_refused(share: float) -> None:
    with pytest.raises(ValueError, match=f"cut off: got a share of {share}.*less than 0.5"):
        Lengths(50, 100, truncated=share)


@pytest.mark.parametrize(("mean", "maximum"), [(0, 10), (-1, 10), (11, 10), (1, float("inf"))])
def test_impossible_lengths_are_refused(mean: float, maximum: float) -> None:
    with pytest.raises(ValueError, match=f"got a mean of {mean} and a maximum of {maximum}"):
        Lengths(mean, maximum)


@given(st.floats(1, 1e5), st.floats(1, 50), st.integers(1, 5000))
def test_order(mean: float, ratio: float, number: int) -> None:
    lengths = Lengths(mean, mean * ratio)
    longest = lengths.expected_maximum(number)
    assert mean * (1 - 1e-6) <= longest <= lengths.maximum
    assert longest <= lengths.expected_maximum(number + 1) * (1 + 1e-9)
    assert mean**2 * (1 - 1e-9) <= lengths.mean_square <= mean * lengths.maximum * (1 + 1e-9)
