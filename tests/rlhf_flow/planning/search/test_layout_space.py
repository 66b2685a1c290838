"""The layouts of a placement, and in which order they are met."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlhf_flow.planning.search.layout_space import LayoutSpace, dimension
from rlhf_flow.planning.search.layouts import Cut

Place = tuple[int, ...]


def space(*seconds: list[float]) -> LayoutSpace:
    """A role for each list: cuts whose only call takes so many seconds."""
    return LayoutSpace(
        {},
        tuple(
            dimension(
                f"role {role}",
                [Cut(number + 1, 1) for number in range(len(each))],
                lambda cut, role=role, each=each: {f"call {role}": each[cut.tensor - 1]},
            )
            for role, each in enumerate(seconds)
        ),
    )


def met(layouts: LayoutSpace) -> list[Place]:
    """Every layout that follows from the first, once for each way to it."""
    found: list[Place] = []
    waiting: list[Place] = [(0,) * len(layouts.dimensions)]
    while waiting:
        place = waiting.pop()
        found.append(place)
        waiting += layouts.next(place)
    return found


@pytest.mark.parametrize("sizes", [(1,), (3,), (1, 1), (2, 3), (3, 1, 2), (2, 2, 2, 2)])
def test_every_layout_is_met_once(sizes: tuple[int, ...]) -> None:
    found = met(space(*([1.0] * size for size in sizes)))
    assert sorted(found) == sorted(product(*map(range, sizes)))


@given(st.lists(st.lists(st.floats(0, 9), min_size=1, max_size=3), min_size=1, max_size=3))
def test_bounds_are_of_all_that_follows(seconds: list[list[float]]) -> None:
    layouts = space(*seconds)
    for place in met(layouts):
        least = layouts.least(place)
        following = [layouts.exact(other) for other in met_from(layouts, place)]
        for call, bound in least.items():
            assert bound <= min(each[call] for each in following)


def met_from(layouts: LayoutSpace, place: Place) -> list[Place]:
    """A layout and all that follow from it."""
    return [place, *(each for after in layouts.next(place) for each in met_from(layouts, after))]


def test_choices_are_in_the_order_of_their_seconds() -> None:
    (only,) = space([3.0, 1.0, 2.0]).dimensions
    assert only.choices == (Cut(2, 1), Cut(3, 1), Cut(1, 1))
