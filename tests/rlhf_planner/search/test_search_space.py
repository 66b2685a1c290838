"""The layouts of a placement, and which of them may fit."""

from __future__ import annotations

from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from rlhf_planner.bounds.memory import Room
from rlhf_planner.memory.offloading import OffloadChoice
from rlhf_planner.search.search_space import Dimension, LayoutSpace, Option, Way, option
from rlhf_planner.strategies.parallelism import Cut

ROOM = (10, 10)
cells = st.tuples(st.integers(0, 9), st.integers(0, 9))
ways = st.tuples(st.integers(1, 9), cells)
spaces = st.lists(
    st.lists(st.lists(ways, min_size=1, max_size=3), min_size=1, max_size=3),
    min_size=1,
    max_size=3,
)


def space(roles: list[list[list[tuple[int, tuple[int, int]]]]]) -> LayoutSpace:
    """A role for each list, with a cut for each list in it: ways with the seconds of its only call
    and with what they take of two cells of 10."""
    return LayoutSpace(
        {},
        tuple(
            Dimension(
                f"role {role}",
                tuple(
                    option(
                        Cut(tensor + 1, 1),
                        [Way({f"call {role}": float(each)}, held) for each, held in of_cut],
                    )
                    for tensor, of_cut in enumerate(cuts)
                ),
            )
            for role, cuts in enumerate(roles)
        ),
        Room((), ROOM, OffloadChoice({}, frozenset())),
        {},
        (),
    )


def fits(held: list[tuple[int, ...]]) -> bool:
    return all(sum(cell) <= most for cell, most in zip(zip(*held, strict=True), ROOM, strict=True))


def plans(layouts: LayoutSpace) -> set[tuple[tuple[object, float], ...]]:
    """Every choice of a cut and a way of each role that fits: cuts with seconds."""
    of_role = [
        [(option.choice, way) for option in dimension.options for way in option.ways]
        for dimension in layouts.dimensions
    ]
    return {
        tuple((choice, *way.seconds.values()) for choice, way in chosen)
        for chosen in product(*of_role)
        if fits([way.held for _, way in chosen])
    }


@given(spaces)
def test_narrowing_takes_nothing_away_that_fits(
    roles: list[list[list[tuple[int, tuple[int, int]]]]],
) -> None:
    layouts = space(roles)
    narrowed = layouts.narrowed()
    assert plans(layouts) == (set() if narrowed is None else plans(narrowed))


@given(spaces, st.data())
def test_what_is_left_has_all_that_fits_with_what_is_chosen(
    roles: list[list[list[tuple[int, tuple[int, int]]]]], data: st.DataObject
) -> None:
    layouts = space(roles)
    place = [
        data.draw(st.integers(0, len(dimension.options) - 1))
        for dimension in layouts.dimensions[: data.draw(st.integers(0, len(roles)))]
    ]
    left = layouts.left(place)
    of_role = [
        [dimension.options[place[number]]] if number < len(place) else dimension.options
        for number, dimension in enumerate(layouts.dimensions)
    ]
    for chosen in product(*of_role):
        if any(fits([w.held for w in each]) for each in product(*(o.ways for o in chosen))):
            assert left is not None
            assert all(each in kept for each, kept in zip(chosen, left.options, strict=True))


def test_what_fits_alone_is_left_out_where_others_take_the_room() -> None:
    large = [[(1, (8, 0))], [(9, (2, 0))]]
    narrowed = space([large, [[(1, (4, 0))]]]).narrowed()
    assert narrowed is not None
    assert [each.choice for each in narrowed.dimensions[0].options] == [Cut(2, 1)]
    assert space([large, [[(1, (9, 0))]]]).narrowed() is None


def test_options_are_in_the_order_of_their_seconds() -> None:
    narrowed = space([[[(3, (0, 0))], [(5, (0, 0)), (1, (0, 0))], [(2, (0, 0))]]]).narrowed()
    assert narrowed is not None
    (only,) = narrowed.dimensions
    assert [each.choice for each in only.options] == [Cut(2, 1), Cut(3, 1), Cut(1, 1)]


def test_an_option_takes_the_least_of_its_ways_in_each_cell() -> None:
    made: Option = option(Cut(1, 1), [Way({"a": 1.0}, (5, 2)), Way({"a": 2.0}, (3, 4))])
    assert (made.least, made.seconds) == ((3, 2), {"a": 1.0})
