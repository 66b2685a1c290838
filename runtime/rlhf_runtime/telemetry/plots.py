"""Scales, series and colours of charts. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

# Width and height of every plot in its own units; the page stretches it to any size.
EXTENT = 1000.0


@dataclass(frozen=True)
class Scale:
    """Values between `low` and `high`, mapped to 0 ... EXTENT."""

    low: float
    high: float

    def at(self, value: float) -> float:
        """The position of a value."""
        return (value - self.low) / (self.high - self.low) * EXTENT

    def percent(self, value: float) -> float:
        """The position of a value in percent."""
        return self.at(value) / EXTENT * 100


def fit_scale(values: Iterable[float], floor: float | None = None) -> Scale:
    """A scale around the finite values with a margin; it always includes `floor`."""
    finite = [value for value in values if math.isfinite(value)]
    if floor is not None:
        finite.append(floor)
    if not finite:
        return Scale(0.0, 1.0)
    low, high = min(finite), max(finite)
    # Equal values: the scale still needs a height.
    if high - low <= abs(high) * 1e-9:
        margin = abs(high) * 0.1 or 1.0
        return Scale(low - margin if floor is None else low, high + margin)
    margin = (high - low) * 0.06
    return Scale(low if low == floor else low - margin, high + margin)


def step_scale(first: int, last: int) -> Scale:
    """The axis of steps; a single step sits in the middle."""
    return Scale(first, last) if last > first else Scale(first - 1, first + 1)


def nice_ticks(scale: Scale, limit: int = 5) -> tuple[float, ...]:
    """At most `limit` round values inside a scale, 1, 2 or 5 times a power of ten apart."""
    span = scale.high - scale.low
    unit = 10.0 ** math.floor(math.log10(span / limit))
    for factor in (1, 2, 5, 10, 20):
        gap = unit * factor
        # Rounding errors must not drop a tick at the edge.
        first = math.ceil(scale.low / gap - 1e-9)
        last = math.floor(scale.high / gap + 1e-9)
        if last - first + 1 <= limit:
            return tuple(index * gap for index in range(first, last + 1))
    return ()


def integer_ticks(scale: Scale, limit: int = 6) -> tuple[int, ...]:
    """Round integers inside a scale of steps."""
    ticks = [round(tick) for tick in nice_ticks(scale, limit) if abs(tick - round(tick)) < 1e-6]
    return tuple(ticks)


def byte_ticks(scale: Scale, limit: int = 5) -> tuple[float, ...]:
    """Round sizes inside a scale of bytes, in the unit of the largest."""
    unit, _ = _byte_unit(scale.high)
    # Multiples of 1024 are round only in their own unit.
    ticks = nice_ticks(Scale(scale.low / unit, scale.high / unit), limit)
    return tuple(tick * unit for tick in ticks)


def byte_label(value: float, ticks: tuple[float, ...]) -> str:
    """A tick's text in the common unit of the axis."""
    unit, name = _byte_unit(max(ticks))
    label = tick_label(value / unit, tuple(tick / unit for tick in ticks))
    return f"{label} {name}" if value else "0"


def _byte_unit(largest: float) -> tuple[float, str]:
    unit, names = 1.0, ["B", "KiB", "MiB", "GiB", "TiB"]
    while largest / unit >= 1024 and len(names) > 1:
        unit *= 1024
        names.pop(0)
    return unit, names[0]


def tick_label(value: float, ticks: tuple[float, ...]) -> str:
    """A tick's text, with just enough decimals to distinguish it from its neighbours."""
    gap = abs(ticks[1] - ticks[0]) if len(ticks) > 1 else abs(value) or 1.0
    largest = max(abs(tick) for tick in ticks)
    for size, suffix in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if largest >= size:
            # Thousands are abbreviated only from 10k on: four digits are easy to read.
            unit = 1e3 if suffix == "k" else size
            return f"{value / unit:.{_decimals(gap / unit)}f}{suffix}" if value else "0"
    if largest < 1e-3:
        exponent = math.floor(math.log10(largest) + 1e-9)
        unit = 10.0**exponent
        return f"{value / unit:.{_decimals(gap / unit)}f}e{exponent}" if value else "0"
    return f"{value:.{_decimals(gap)}f}"


def _decimals(gap: float) -> int:
    return max(0, -math.floor(math.log10(gap) + 1e-9))


# A step and a value.
Point = tuple[int, float]


def finite(points: Sequence[Point]) -> list[Point]:
    """The points whose value is a number."""
    return [point for point in points if math.isfinite(point[1])]


def thin(points: Sequence[Point], limit: int) -> list[Point]:
    """At most about `limit` points that keep every peak: each bucket's smallest and largest.

    A bucket with a value that is not finite also keeps one such point. The first and the last
    point are kept.
    """
    if len(points) <= limit:
        return list(points)
    kept = {0, len(points) - 1}
    buckets = max(1, limit // 2)
    for bucket in range(buckets):
        part = range(bucket * len(points) // buckets, (bucket + 1) * len(points) // buckets)
        numbers = [index for index in part if math.isfinite(points[index][1])]
        if len(numbers) < len(part):
            # Otherwise gaps would disappear.
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
    # With prefix sums each mean takes constant time.
    sums = list(accumulate((value for _, value in numbers), initial=0.0))
    reach = max(2, len(numbers) // 20)
    smoothed: list[Point] = []
    for index, (step, _) in enumerate(numbers):
        low, high = max(0, index - reach), min(len(numbers), index + reach + 1)
        smoothed.append((step, (sums[high] - sums[low]) / (high - low)))
    return smoothed


# Colours of the palette; the page defines --c0 ... --c7 and the text on them, --t0 ... --t7.
NUM_COLOURS = 8

# The rest of a step, outside of its phases.
OTHER = "other"

# Calls and phases with a fixed colour.
FIXED_COLOURS = {
    "generate": 0,
    "train": 1,
    "score": 2,
    "score_early": 2,
    "reward": 2,
    "infer": 3,
    "log_probs": 3,
    "values": 7,
    "compute": 4,
    "transition": 5,
    "reshard": 5,
    "release": 5,
    "load": 5,
    "offload": 5,
    "update_weights": 5,
    "evaluate": 6,
    OTHER: 6,
}


def colours(names: Iterable[str]) -> dict[str, int]:
    """A colour for each name: its fixed one, else the unused ones in turn, in order of names."""
    ordered = list(dict.fromkeys(names))
    used = {FIXED_COLOURS[name] for name in ordered if name in FIXED_COLOURS}
    # All colours may be used: then names share the last one.
    free = [colour for colour in range(NUM_COLOURS) if colour not in used] or [7]
    chosen: dict[str, int] = {}
    unknown = 0
    for name in ordered:
        if name in FIXED_COLOURS:
            chosen[name] = FIXED_COLOURS[name]
        else:
            chosen[name] = free[unknown % len(free)]
            unknown += 1
    return chosen
