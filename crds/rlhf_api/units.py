"""Quantities written with a unit, for fields whose names state theirs. Pure."""

from __future__ import annotations

import re

_SECONDS = {"ms": 0.001, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}
_GIBIBYTES = {
    "Mi": 2**-10,
    "Gi": 1,
    "Ti": 2**10,
    "M": 1e6 / 2**30,
    "G": 1e9 / 2**30,
    "T": 1e12 / 2**30,
}
_UNITS_OF = {"seconds": _SECONDS, "gibibytes": _GIBIBYTES}
"""By the ending of a field's name."""
_QUANTITY = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]+?)[Bb]?\s*")


def without_unit(field: str, text: str) -> str | None:
    """The number to write for a quantity such as `2h` or `1.5Gi`, in the unit that the field's
    name states; None for anything else.

    Args:
        field: a name such as activeDeadlineSeconds.
        text: what was written.
    """
    units = next((units for end, units in _UNITS_OF.items() if field.lower().endswith(end)), None)
    parts = _QUANTITY.fullmatch(text)
    if units is None or parts is None or parts[2] not in units:
        return None
    return f"{float(parts[1]) * units[parts[2]]:.6g}"
