"""Durations as people write them, for fields with an integer number of seconds. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from fractions import Fraction
from math import ceil

_SECONDS: Mapping[str, Fraction] = {
    "ms": Fraction(1, 1000),
    "s": Fraction(1),
    "m": Fraction(60),
    "min": Fraction(60),
    "h": Fraction(3600),
    "d": Fraction(86400),
}
_DURATION = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*")


def parse_seconds(text: str) -> int | None:
    """The seconds of a text such as `2h` or `1.5 min`, rounded up; None if it is no duration."""
    parts = _DURATION.fullmatch(text)
    if parts is None or parts[2] not in _SECONDS:
        return None
    return ceil(Fraction(parts[1]) * _SECONDS[parts[2]])
