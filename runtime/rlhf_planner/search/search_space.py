"""All layouts of a placement: a cut of each model and a size of each role's engines, with what
their calls take at least, and what they hold. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from operator import add, le, sub
from typing import NamedTuple

from rlhf_planner.bounds.memory import Cells, Room
from rlhf_planner.bounds.step import Order, Seconds
from rlhf_planner.bounds.time import Calls
from rlhf_planner.strategies.parallelism import Cut, with_layout
from rlhf_planner.strategies.placements import Placement


class Way(NamedTuple):
    """One way to compute with a cut: micro-batches and recomputation."""

    seconds: Seconds
    """Of the calls that depend on it."""
    held: Cells
    """What it takes of the placement's room."""


@dataclass(frozen=True)
class Option:
    """A cut of a model, or a size of engines."""

    choice: Cut | int
    ways: tuple[Way, ...]
    """To compute with it."""
    least: Cells
    """What it takes of the room at least, in each cell."""

    @cached_property
    def seconds(self) -> Seconds:
        """What its calls take at least."""
        return _least_seconds([way.seconds for way in self.ways])


def option(choice: Cut | int, ways: Sequence[Way]) -> Option:
    """An option with at least one way."""
    return Option(choice, tuple(ways), least_cells([way.held for way in ways]))


@dataclass(frozen=True)
class Dimension:
    """One choice of a layout: a role's cut, or the size of its engines."""

    role: str
    options: tuple[Option, ...]
    """Best first, by the seconds of all calls."""
    is_engines: bool = False
    """Whether it is the latter."""


class Left(NamedTuple):
    """What is left of a space when the first of its dimensions are chosen."""

    options: tuple[tuple[Option, ...], ...]
    """Of each dimension those that may fit; one of what is chosen."""
    beside: tuple[Cells, ...]
    """What each dimension may take at most: the room without what the others take at least."""


@dataclass(frozen=True, eq=False)
class LayoutSpace:
    """All layouts of a placement."""

    placement: Placement
    dimensions: tuple[Dimension, ...]
    room: Room
    """What its devices have beside what processes take."""
    crossing: Mapping[str, Calls]
    """Of each role the calls whose columns come from other nodes."""
    orders: tuple[Order, ...]
    """Of a step's calls, with loads and offloads. Empty: no role leaves its devices."""

    def left(self, place: Sequence[int]) -> Left | None:
        """What is left when options of the first dimensions are chosen. None: nothing fits.

        An option is left out when it does not fit beside the least that all others take; that may
        leave fewer of the others, and so on.
        """
        options = [
            (dimension.options[place[number]],) if number < len(place) else dimension.options
            for number, dimension in enumerate(self.dimensions)
        ]
        while True:
            least = [least_cells([each.least for each in found]) for found in options]
            beside = room_beside(self.room.spare, least)
            kept = [
                tuple(each for each in found if fits(each.least, most))
                for found, most in zip(options, beside, strict=True)
            ]
            if not all(kept):
                return None
            if all(len(new) == len(old) for new, old in zip(kept, options, strict=True)):
                return Left(tuple(options), tuple(beside))
            options = kept

    def narrowed(self) -> LayoutSpace | None:
        """The space without options and ways that do not fit, whatever the others are; dimensions'
        options best first. None: nothing fits."""
        found = self.left(())
        if found is None:
            return None
        dimensions = []
        for dimension, options, most in zip(self.dimensions, *found, strict=True):
            ways = [[way for way in each.ways if fits(way.held, most)] for each in options]
            fitting = [
                option(each.choice, of_it)
                for each, of_it in zip(options, ways, strict=True)
                if of_it
            ]
            if not fitting:
                return None
            fitting.sort(key=lambda each: sum(each.seconds.values()))
            dimensions.append(replace(dimension, options=tuple(fitting)))
        return replace(self, dimensions=tuple(dimensions))

    def places(self, place: Sequence[int]) -> Placement:
        """Where roles are in a layout, with models cut and engines sized."""
        cut_of: dict[str, Cut] = {}
        tensor_of: dict[str, int] = {}
        for dimension, number in zip(self.dimensions, place, strict=True):
            chosen = dimension.options[number].choice
            if isinstance(chosen, Cut):
                cut_of[dimension.role] = chosen
            else:
                tensor_of[dimension.role] = chosen
        return with_layout(self.placement, cut_of, tensor_of)


def _least_seconds(found: Sequence[Seconds]) -> Seconds:
    """Of each call."""
    first, *others = found
    return {call: min([each, *(o[call] for o in others)]) for call, each in first.items()}


def least_cells(found: Sequence[Cells]) -> Cells:
    """The least in each cell."""
    return found[0] if len(found) == 1 else tuple(map(min, *found))


def room_beside(spare: Cells, least: Sequence[Cells]) -> list[Cells]:
    """Of each thing that takes room: the room without all the others."""
    total = spare
    for cells in least:
        total = tuple(map(sub, total, cells))
    return [tuple(map(add, total, cells)) for cells in least]


def fits(held: Cells, room: Cells) -> bool:
    """Whether there is enough room in each cell."""
    return all(map(le, held, room))
