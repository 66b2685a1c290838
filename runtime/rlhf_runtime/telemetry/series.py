"""Series of points: thinning for long runs, gaps where values are not finite, smoothing. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate

Point = tuple[int, float]
"""A step and a value."""


def finite(points: Sequence[Point]) -> list[Point]:
    """The points whose value is a number."""
    return [point for point in points if math.isfinite(point[1])]


def thin(points: Sequence[Point], limit: int) -> list[Point]:
    """At most about `limit` points that keep every peak: each bucket's smallest and largest.

    A bucket with a value that is not finite also keeps one such point, so that gaps stay
    visible. The first and the last point are kept.
    """
    if len(points) <= limit:
        return list(points)
    kept = {0, len(points) - 1}
    buckets = max(1, limit // 2)
    for bucket in range(buckets):
        part = range(bucket * len(points) // buckets, (bucket + 1) * len(points) // buckets)
        numbers = [index for index in part if math.isfinite(points[index][1])]
        if len(numbers) < len(part):
            kept.add(next(index for index in part if not math.isfinite(points[index][1])))
        if numbers:
            kept.add(min(numbers, key=lambda index: points[index][1]))
            kept.add(max(numbers, key=lambda index: points[index][1]))
    return [points[index] for index in sorted(kept)]


def runs(points: Sequence[Point]) -> list[list[Point]]:
    """Split points at those that are not finite: each run is drawn as one line."""
    result: list[list[Point]] = [[]]
    for point in points:
        if math.isfinite(point[1]):
            result[-1].append(point)
        elif result[-1]:
            result.append([])
    return [run for run in result if run]


def smooth(points: Sequence[Point]) -> list[Point]:
    """The centred running mean of the finite points.

    Its window is a tenth of the series, at least five points, and is cut off at both ends.
    """
    numbers = finite(points)
    sums = list(accumulate((value for _, value in numbers), initial=0.0))
    reach = max(2, len(numbers) // 20)
    smoothed: list[Point] = []
    for index, (step, _) in enumerate(numbers):
        low, high = max(0, index - reach), min(len(numbers), index + reach + 1)
        smoothed.append((step, (sums[high] - sums[low]) / (high - low)))
    return smoothed
