"""Verdicts on a paper's result and the planner's: the rules, the same for all tables.

a choice    agrees if it is the same; near if the paper's takes at most 5 % more time than the
            planner's, by the planner's own times; else disagrees
a share     agrees within 10 percentage points; else disagrees
a limit     agrees if ours is not above it; else disagrees
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

AGREES, NEAR, DISAGREES = "agrees", "near", "disagrees"
NEAR_SHARE = 0.05
"""Extra time with which another choice is still near."""
SHARE_POINTS = 0.10
"""Largest difference of two shares that agree."""
RULES = (
    "A choice agrees if it is the same, and is near if the paper's takes at most "
    f"{NEAR_SHARE:.0%} longer here; shares agree within {100 * SHARE_POINTS:.0f} points."
)

Choice = TypeVar("Choice")


def same_choice(papers: Choice, seconds: Mapping[Choice, float]) -> str:
    """Verdict on a paper's choice.

    Args:
        papers: the paper's best choice.
        seconds: our time by choice; choices that do not fit are missing.
    """
    if papers not in seconds:  # it does not fit here
        return DISAGREES
    share = seconds[papers] / min(seconds.values()) - 1
    return AGREES if share == 0 else NEAR if share <= NEAR_SHARE else DISAGREES


def same_share(papers: float, ours: float) -> str:
    """Verdict on two shares."""
    return AGREES if abs(papers - ours) <= SHARE_POINTS else DISAGREES


def within(limit: float, ours: float) -> str:
    """Verdict on a paper's limit."""
    return AGREES if ours <= limit else DISAGREES
