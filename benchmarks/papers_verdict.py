"""Whether what a paper found and what the planner finds agree: the rules, the same for all tables.

a choice    agrees if it is the same; near if the paper's takes at most 5 % more time than the
            planner's, by the planner's own times; else disagrees
a share     agrees if the two are at most 10 percentage points apart; else disagrees
a limit     agrees if it is kept; else disagrees
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

AGREES, NEAR, DISAGREES = "agrees", "near", "disagrees"
NEAR_SHARE = 0.05
"""More time with which another choice is as good."""
SHARE_POINTS = 0.10
"""Between two shares that agree."""
RULES = (
    "A choice agrees if it is the same, and is near if the paper's takes at most "
    f"{NEAR_SHARE:.0%} longer here; shares agree within {100 * SHARE_POINTS:.0f} points."
)

Choice = TypeVar("Choice")


def same_choice(papers: Choice, seconds: Mapping[Choice, float]) -> str:
    """Of a paper's choice.

    Args:
        papers: what is best there.
        seconds: what each choice takes here; those that do not fit are left out.
    """
    if papers not in seconds:
        return DISAGREES
    share = seconds[papers] / min(seconds.values()) - 1
    return AGREES if share == 0 else NEAR if share <= NEAR_SHARE else DISAGREES


def same_share(papers: float, ours: float) -> str:
    """Of two shares."""
    return AGREES if abs(papers - ours) <= SHARE_POINTS else DISAGREES


def within(limit: float, ours: float) -> str:
    """Of a paper's limit."""
    return AGREES if ours <= limit else DISAGREES
