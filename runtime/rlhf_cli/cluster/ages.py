"""How long ago something was, as kubectl writes it. Pure."""

from __future__ import annotations

from datetime import datetime

_UNITS = (("d", 86400), ("h", 3600), ("m", 60), ("s", 1))


def age(then: datetime, now: datetime) -> str:
    """The time between the two: 45s, 5m10s, 90m, 3h20m, 26h, 3d4h, 12d."""
    seconds = max(0, int((now - then).total_seconds()))
    if seconds < 120:
        return f"{seconds}s"
    for index, (unit, size) in enumerate(_UNITS[:-1]):
        count, rest = divmod(seconds, size)
        if count < (2 if unit != "m" else 1):
            continue
        smaller, small = _UNITS[index + 1]
        if count < 10 and rest >= small:
            return f"{count}{unit}{rest // small}{smaller}"
        return f"{count}{unit}"
    return f"{seconds}s"
