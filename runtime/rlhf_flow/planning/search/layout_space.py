"""All layouts of a placement: a cut of each model and a size of each role's engines, with what
their calls take at least. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from rlhf_flow.planning.search.layouts import Cut, with_layout
from rlhf_flow.planning.search.least_seconds import Seconds
from rlhf_flow.planning.search.placements import Placement


@dataclass(frozen=True)
class Dimension:
    """One choice of a layout: a role's cut, or the size of its engines."""

    role: str
    choices: tuple[Cut | int, ...]
    """Best first, by the seconds of all calls."""
    seconds: tuple[Seconds, ...]
    """Of the calls that depend on it, for each choice at least."""

    @cached_property
    def least(self) -> tuple[Seconds, ...]:
        """For each choice: of it and of all after it."""
        found: list[Seconds] = [self.seconds[-1]]
        for seconds in self.seconds[-2::-1]:
            found.append({call: min(each, found[-1][call]) for call, each in seconds.items()})
        return tuple(reversed(found))


@dataclass(frozen=True, eq=False)
class LayoutSpace:
    """All layouts of a placement."""

    placement: Placement
    dimensions: tuple[Dimension, ...]

    @property
    def is_empty(self) -> bool:
        """Whether some model cannot be cut, or some engine cannot be built there."""
        return any(not dimension.choices for dimension in self.dimensions)

    def least(self, place: Sequence[int]) -> Seconds:
        """Of the calls in a layout and in all that follow from it."""
        parts = zip(self.dimensions, place, strict=True)
        return {
            call: seconds
            for dimension, number in parts
            for call, seconds in dimension.least[number].items()
        }

    def exact(self, place: Sequence[int]) -> Seconds:
        """Of the calls in a layout, as far as memory leaves it open."""
        parts = zip(self.dimensions, place, strict=True)
        return {
            call: seconds
            for dimension, number in parts
            for call, seconds in dimension.seconds[number].items()
        }

    def places(self, place: Sequence[int]) -> Placement:
        """Where roles are in a layout, with models cut and engines sized."""
        cut_of: dict[str, Cut] = {}
        tensor_of: dict[str, int] = {}
        for dimension, number in zip(self.dimensions, place, strict=True):
            chosen = dimension.choices[number]
            if isinstance(chosen, Cut):
                cut_of[dimension.role] = chosen
            else:
                tensor_of[dimension.role] = chosen
        return with_layout(self.placement, cut_of, tensor_of)

    def next(self, place: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        """The layouts that follow from one: each is reached from one only, as its last dimension
        that is not the first choice is one further."""
        last = max((n for n, number in enumerate(place) if number), default=0)
        for n in range(last, len(place)):
            if place[n] + 1 < len(self.dimensions[n].choices):
                yield (*place[:n], place[n] + 1, *place[n + 1 :])


def dimension(
    role: str, choices: Sequence[Cut] | Sequence[int], seconds_of: Callable[[Any], Seconds | None]
) -> Dimension:
    """A dimension with its choices in the order of their seconds."""
    priced = [
        (choice, seconds) for choice in choices if (seconds := seconds_of(choice)) is not None
    ]
    priced.sort(key=lambda each: sum(each[1].values()))
    return Dimension(role, tuple(each for each, _ in priced), tuple(each for _, each in priced))
