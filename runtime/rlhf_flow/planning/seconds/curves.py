"""Measured seconds as functions of one number: piecewise linear, never falling."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from itertools import pairwise
from typing import Annotated, Self

from pydantic import Field, model_validator

from rlhf_api.base import Contract

Number = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Curve(Contract):
    """Seconds by something that is counted. Between two points it is linear, beyond the first and
    the last it goes on with the slope of the segment there, and never below 0."""

    at: Annotated[tuple[Number, ...], Field(min_length=2)]
    """What was counted: tokens, pairs, sequences or parameters, rising."""
    seconds: Annotated[tuple[Number, ...], Field(min_length=2)]
    """What was measured there, not falling."""

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        if len(self.at) != len(self.seconds):
            raise ValueError(f"{len(self.at)} points with {len(self.seconds)} seconds")
        if any(low >= high for low, high in pairwise(self.at)):
            raise ValueError("points do not rise")
        if any(low > high for low, high in pairwise(self.seconds)):
            raise ValueError("seconds fall")
        return self

    def __call__(self, at: float) -> float:
        """Seconds there."""
        points, seconds = self.at, self.seconds
        after = min(max(bisect_left(points, at), 1), len(points) - 1)
        left, low = points[after - 1], seconds[after - 1]
        slope = (seconds[after] - low) / (points[after] - left)
        return max(0.0, low + (at - left) * slope)


def curve_of(samples: Iterable[tuple[float, float]]) -> Curve:
    """The curve of what was measured.

    Whatever disturbs a measurement makes it longer. So of several measurements of one point the
    least counts, and none is longer than that of a later point. What was measured at a single point
    is taken to hold everywhere.

    Args:
        samples: what was counted, not below 0, and seconds, of which those below 0 count as 0; at
            least one.
    """
    least: dict[float, float] = {}
    for at, seconds in samples:
        least[at] = min(seconds, least.get(at, seconds))
    points = sorted(least)
    values: list[float] = []
    for at in reversed(points):
        values.append(min([max(0.0, least[at]), *values[-1:]]))
    if len(points) == 1:
        (only,) = points
        return Curve(at=(0.0, only) if only > 0 else (0.0, 1.0), seconds=(values[0], values[0]))
    return Curve(at=tuple(points), seconds=tuple(reversed(values)))


class BlockCurves(Contract):
    """Seconds of a block: for its tokens, and for pairs of them in attention; their sum counts."""

    tokens: Curve
    """By tokens, with pairs taken out."""
    pairs: Curve
    """By pairs of tokens of which one looks at the other, from 0."""

    def __call__(self, tokens: float, pairs: float) -> float:
        """Seconds of both."""
        return self.tokens(tokens) + self.pairs(pairs)


def block_curves(samples: Iterable[tuple[float, float, float]]) -> BlockCurves:
    """A block's curves from measurements, among which one number of tokens should occur with
    different numbers of pairs; where none does, pairs take nothing beyond what tokens take.

    With n tokens, the number that has most of them, seconds grow by what pairs take; from the
    fewest pairs down to none they are taken to fall as they rise from there to the next more. What
    pairs take is then subtracted from all measurements.

    Args:
        samples: tokens, pairs and seconds; at least one.
    """
    rows = list(samples)
    by_tokens: dict[float, list[tuple[float, float]]] = {}
    for tokens, pairs, seconds in rows:
        by_tokens.setdefault(tokens, []).append((pairs, seconds))

    def num_pairs(tokens: float) -> int:
        return len({pairs for pairs, _ in by_tokens[tokens]})

    most = max(by_tokens, key=lambda tokens: (num_pairs(tokens), tokens))
    attention = _pairs_curve(curve_of(by_tokens[most]))
    return BlockCurves(
        tokens=curve_of((tokens, seconds - attention(count)) for tokens, count, seconds in rows),
        pairs=attention,
    )


def _pairs_curve(measured: Curve) -> Curve:
    """The same from 0 pairs on, where nothing is left."""
    (first, second, *_), (low, high, *_) = measured.at, measured.seconds
    none = low - first * (high - low) / (second - first)
    more = [max(0.0, seconds - none) for seconds in measured.seconds]
    if first == 0:
        return Curve(at=measured.at, seconds=tuple(more))
    return Curve(at=(0.0, *measured.at), seconds=(0.0, *more))
