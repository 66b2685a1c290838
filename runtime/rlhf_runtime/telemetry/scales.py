"""Axes: nice ticks, and numbers as positions. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

EXTENT = 1000.0
"""Width and height of every plot in its own units; the page stretches it to any size."""


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
            unit = 1e3 if suffix == "k" else size
            return f"{value / unit:.{_decimals(gap / unit)}f}{suffix}" if value else "0"
    if largest < 1e-3:
        exponent = math.floor(math.log10(largest) + 1e-9)
        unit = 10.0**exponent
        return f"{value / unit:.{_decimals(gap / unit)}f}e{exponent}" if value else "0"
    return f"{value:.{_decimals(gap)}f}"


def _decimals(gap: float) -> int:
    return max(0, -math.floor(math.log10(gap) + 1e-9))
