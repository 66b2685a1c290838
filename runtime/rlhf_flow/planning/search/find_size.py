"""How many devices a plan takes, where that is free: the part of the pools on which its plan is
best. Pure and deterministic.

Best first, as `find_plan` is: parts wait by the score that their plans may have at best
(size_bounds.py). A part is searched for plans that score better than the best so far, and for no
others; when the next part cannot score better, the best is the best of all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf

from rlhf_flow.planning.problem import PlanningProblem
from rlhf_flow.planning.search.objectives import WORST, Objective
from rlhf_flow.planning.search.pool_sizes import num_devices
from rlhf_flow.planning.search.searched import Searched

SearchPart = Callable[[PlanningProblem, float], Searched | None]
"""Looks for the fastest plan on a part whose steps take less than so many seconds. None: what is
decided cannot be there."""


@dataclass(frozen=True)
class Part:
    """A part of the pools, and what is known of its plans."""

    problem: PlanningProblem
    """With these devices only."""
    bound_seconds: float
    """No plan on it that was looked for takes less; infinite where none is possible."""
    searched: Searched | None = None
    """The search there. None: it was not needed."""

    @property
    def devices(self) -> int:
        """How many."""
        return num_devices(self.problem.pools)

    @property
    def step_seconds(self) -> float:
        """Of the plan that was found; infinite without one."""
        return inf if self.searched is None else self.searched.found.step_seconds


@dataclass(frozen=True)
class SizeFound:
    """What came of comparing parts."""

    best: Part | None
    """That with the best plan. None: there is no plan."""
    parts: tuple[Part, ...]
    """All of them, those of fewer devices first."""
    is_proved: bool
    """Whether no part of the family has a plan that scores better."""


def find_size(parts: Sequence[Part], objective: Objective, search: SearchPart) -> SizeFound:
    """The best part.

    Args:
        parts: with their bounds.
        objective: by which they are compared.
        search: finds the plan of one.
    """
    best, best_score, known = None, WORST, list(parts)

    def least(number: int) -> tuple[float, float]:
        return objective.score(known[number].devices, known[number].bound_seconds)

    for number in sorted(range(len(parts)), key=least):
        part = parts[number]
        if least(number) >= best_score:
            break
        below = objective.below_seconds(part.devices, best_score)
        searched = search(part.problem, below)
        known[number] = part = _with_search(part, searched)
        score = objective.score(part.devices, part.step_seconds)
        if score < best_score:
            best, best_score = part, score
    is_proved = all(least(number) >= best_score for number in range(len(parts)))
    return SizeFound(best, tuple(known), is_proved)


def _with_search(part: Part, searched: Searched | None) -> Part:
    if searched is None:
        return replace(part, bound_seconds=inf)
    bound = max(part.bound_seconds, searched.found.bound_seconds)
    return replace(part, bound_seconds=min(bound, searched.found.step_seconds), searched=searched)
