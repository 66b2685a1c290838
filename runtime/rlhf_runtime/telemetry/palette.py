"""The colours of calls and phases, equal in all charts.

Colours are indices into the page's palette, which is safe for colour-blind readers in light and
dark (after Paul Tol's bright scheme).
"""

from __future__ import annotations

from collections.abc import Iterable

NUM_COLOURS = 8
"""Colours of the palette; the page defines --c0 ... --c7 and the text on them, --t0 ... --t7."""

OTHER = "other"
"""The rest of a step, outside of its phases."""

FIXED_COLOURS = {
    "generate": 0,
    "train": 1,
    "score": 2,
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
"""Calls and phases with a fixed colour."""


def colours(names: Iterable[str]) -> dict[str, int]:
    """A colour for each name: its fixed one, else the unused ones in turn, in order of names."""
    ordered = list(dict.fromkeys(names))
    used = {FIXED_COLOURS[name] for name in ordered if name in FIXED_COLOURS}
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
