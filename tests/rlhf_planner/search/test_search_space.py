"""The layouts of a placement, and which options stay feasible."""

from __future__ import annotations

from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from rlhf_planner.bounds.memory import Capacity
from rlhf_planner.memory.offloading import OffloadChoice
from rlhf_planner.search.search_space import (
    ComputeConfig,
    Dimension,
    LayoutSpace,
    Option,
    make_option,
)
from rlhf_planner.strategies.parallelism import Cut

CAPACITY = (10, 10)
cells = st.tuples(st.integers(0, 9), st.integers(0, 9))
configs = st.tuples(st.integers(1, 9), cells)
spaces = st.lists(
    st.lists(st.lists(configs, min_size=1, max_size=3), min_size=1, max_size=3),
    min_size=1,
    max_size=3,
)


def space(roles: list[list[list[tuple[int, tuple[int, int]]]]]) -> LayoutSpace:
    """A role for each list, with a cut for each list in it: configs with the seconds of its call
    and their bytes in two cells of 10."""
    return LayoutSpace(
        {},
        tuple(
            Dimension(
                f"role {role}",
                tuple(
                    make_option(
                        Cut(tensor + 1, 1),
                        [
                            ComputeConfig({f"call {role}": float(each)}, memory)
                            for each, memory in of_cut
                        ],
                    )
                    for tensor, of_cut in enumerate(cuts)
                ),
            )
            for role, cuts in enumerate(roles)
        ),
        Capacity((), CAPACITY, OffloadChoice({}, frozenset())),
        {},
        (),
    )


def fits(memory: list[tuple[int, ...]]) -> bool:
    return all(
        sum(cell) <= most for cell, most in zip(zip(*memory, strict=True), CAPACITY, strict=True)
    )


def plans(layouts: LayoutSpace) -> set[tuple[tuple[object, float], ...]]:
    """Every feasible choice of a cut and a config of each role: cuts with seconds."""
    of_role = [
        [(option.choice, config) for option in dimension.options for config in option.configs]
        for dimension in layouts.dimensions
    ]
    return {
        tuple((choice, *config.seconds.values()) for choice, config in chosen)
        for chosen in product(*of_role)
        if fits([config.memory for _, config in chosen])
    }


@given(spaces)
def test_pruning_removes_no_feasible_plan(
    roles: list[list[list[tuple[int, tuple[int, int]]]]],
) -> None:
    layouts = space(roles)
    pruned = layouts.pruned()
    assert plans(layouts) == (set() if pruned is None else plans(pruned))


@given(spaces, st.data())
def test_residual_domains_have_every_option_of_a_feasible_layout(
    roles: list[list[list[tuple[int, tuple[int, int]]]]], data: st.DataObject
) -> None:
    layouts = space(roles)
    assignment = [
        data.draw(st.integers(0, len(dimension.options) - 1))
        for dimension in layouts.dimensions[: data.draw(st.integers(0, len(roles)))]
    ]
    domains = layouts.propagate(assignment)
    of_role = [
        [dimension.options[assignment[number]]] if number < len(assignment) else dimension.options
        for number, dimension in enumerate(layouts.dimensions)
    ]
    for chosen in product(*of_role):
        if any(fits([w.memory for w in each]) for each in product(*(o.configs for o in chosen))):
            assert domains is not None
            assert all(each in kept for each, kept in zip(chosen, domains.options, strict=True))


def test_an_option_that_fits_alone_is_pruned_next_to_large_ones() -> None:
    large = [[(1, (8, 0))], [(9, (2, 0))]]
    pruned = space([large, [[(1, (4, 0))]]]).pruned()
    assert pruned is not None
    assert [each.choice for each in pruned.dimensions[0].options] == [Cut(2, 1)]
    assert space([large, [[(1, (9, 0))]]]).pruned() is None


def test_options_are_in_the_order_of_their_seconds() -> None:
    pruned = space([[[(3, (0, 0))], [(5, (0, 0)), (1, (0, 0))], [(2, (0, 0))]]]).pruned()
    assert pruned is not None
    (only,) = pruned.dimensions
    assert [each.choice for each in only.options] == [Cut(2, 1), Cut(3, 1), Cut(1, 1)]


def test_an_option_has_the_minimum_of_its_configs_in_each_cell() -> None:
    made: Option = make_option(
        Cut(1, 1), [ComputeConfig({"a": 1.0}, (5, 2)), ComputeConfig({"a": 2.0}, (3, 4))]
    )
    assert (made.min_bytes, made.seconds) == ((3, 2), {"a": 1.0})
