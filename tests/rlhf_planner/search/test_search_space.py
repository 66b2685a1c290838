"""The strategies of a placement as a tree, and which candidates stay feasible."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlhf_api.mesh import Mesh
from rlhf_planner.bounds.memory import Capacity
from rlhf_planner.placement.strategy import Cut, EngineStrategy, JobStrategy, RoleStrategy
from rlhf_planner.search.search_space import (
    Candidate,
    Dimension,
    Domains,
    SearchSpace,
    open_candidate,
)

CAPACITY = (10, 10)
DEVICES = RoleStrategy(Mesh(pool="pool", data=8))
cells = st.tuples(st.integers(0, 9), st.integers(0, 9))
configs = st.tuples(st.integers(1, 9), cells)
spaces = st.lists(
    st.lists(st.lists(configs, min_size=1, max_size=3), min_size=1, max_size=3),
    min_size=1,
    max_size=3,
)
Roles = list[list[list[tuple[int, tuple[int, int]]]]]


def space(roles: Roles) -> SearchSpace:
    """A role for each list, with a cut for each list in it: completions with the seconds of its
    call and their bytes in two cells of 10."""
    return SearchSpace(
        JobStrategy({}, {}),
        tuple(Dimension(f"role {role}") for role, _ in enumerate(roles)),
        tuple(
            tuple(
                open_candidate(
                    DEVICES.with_cut(Cut(tensor + 1, 1)),
                    [
                        Candidate(
                            RoleStrategy(DEVICES.devices, tensor + 1, 1, micro_batch_tokens=number),
                            {f"call {role}": float(seconds)},
                            memory,
                        )
                        for number, (seconds, memory) in enumerate(of_cut, 1)
                    ],
                )
                for tensor, of_cut in enumerate(cuts)
            )
            for role, cuts in enumerate(roles)
        ),
        Capacity((), CAPACITY, {}),
        {},
        (),
    )


def fits(chosen: tuple[Candidate, ...]) -> bool:
    sums = map(sum, zip(*(candidate.min_bytes for candidate in chosen), strict=True))
    return all(cell <= most for cell, most in zip(sums, CAPACITY, strict=True))


def completed(domains: Domains) -> Iterator[tuple[Candidate, ...]]:
    """Every feasible choice of a complete candidate of each role."""
    of_role = [[c for cut in domain for c in cut.completions or (cut,)] for domain in domains]
    return filter(fits, product(*of_role))


def plans(domains: Domains) -> set[tuple[object, ...]]:
    return {tuple(candidate.strategy for candidate in chosen) for chosen in completed(domains)}


def leaves(tree: SearchSpace | None) -> Iterator[SearchSpace]:
    if tree is not None and tree.is_complete:
        yield tree
    elif tree is not None:
        for part in tree.branches():
            yield from leaves(part)


@given(spaces)
def test_pruning_removes_no_feasible_plan(roles: Roles) -> None:
    tree = space(roles)
    pruned = tree.pruned()
    assert plans(tree.domains) == (set() if pruned is None else plans(pruned.domains))


@given(spaces, st.data())
def test_residual_domains_have_every_candidate_of_a_feasible_plan(
    roles: Roles, data: st.DataObject
) -> None:
    tree = space(roles)
    number = data.draw(st.integers(0, len(roles)))
    chosen = tuple((data.draw(st.sampled_from(domain)),) for domain in tree.domains[:number])
    domains = (*chosen, *tree.domains[number:])
    part = replace(tree, domains=domains).propagated()
    assert plans(domains) == (set() if part is None else plans(part.domains))


@given(spaces)
def test_leaves_are_the_feasible_plans_that_no_other_dominates(roles: Roles) -> None:
    """A leaf is reached once, and a plan that is no leaf has one that is as fast in all calls."""
    tree = space(roles)
    found = [tuple(c for (c,) in each.domains) for each in leaves(tree.propagated())]
    assert len({tuple(c.strategy for c in each) for each in found}) == len(found)
    assert all(map(fits, found))
    seconds = [[sum(c.seconds.values()) for c in each] for each in found]
    for chosen in completed(tree.domains):
        own = [sum(candidate.seconds.values()) for candidate in chosen]
        assert any(all(map(float.__le__, other, own)) for other in seconds)


@given(spaces)
def test_the_first_leaf_is_a_leaf(roles: Roles) -> None:
    tree = space(roles)
    root = tree.propagated()
    first = None if root is None else root.first_leaf()
    assert first is None or first in [each.strategy for each in leaves(root)]


def test_a_candidate_that_fits_alone_is_pruned_next_to_large_ones() -> None:
    large = [[(1, (8, 0))], [(9, (2, 0))]]
    pruned = space([large, [[(1, (4, 0))]]]).pruned()
    assert pruned is not None
    assert [each.strategy.tensor for each in pruned.domains[0]] == [2]
    assert space([large, [[(1, (9, 0))]]]).pruned() is None


def test_candidates_are_in_the_order_of_their_seconds() -> None:
    pruned = space([[[(3, (0, 0))], [(5, (0, 0)), (1, (0, 0))], [(2, (0, 0))]]]).pruned()
    assert pruned is not None
    (only,) = pruned.domains
    assert [each.strategy.tensor for each in only] == [2, 3, 1]


def test_an_open_candidate_has_the_minimum_of_its_completions_in_each_cell() -> None:
    made = open_candidate(
        DEVICES,
        [Candidate(DEVICES, {"a": 1.0}, (5, 2)), Candidate(DEVICES, {"a": 2.0}, (3, 4))],
    )
    assert (made.min_bytes, made.seconds) == ((3, 2), {"a": 1.0})


@pytest.mark.parametrize("release", [False, True])
def test_a_leaf_has_a_strategy_for_each_role_and_its_engines(release: bool) -> None:
    engines = EngineStrategy(DEVICES.devices, tensor=2, release=release)
    one, other = (Candidate(strategy, {}, (1, 1)) for strategy in (DEVICES, engines))
    tree = SearchSpace(
        JobStrategy({"a": DEVICES}, {"a": EngineStrategy(DEVICES.devices)}),
        (Dimension("a"), Dimension("a", is_engines=True)),
        ((one,), (other,)),
        Capacity((), CAPACITY, {}),
        {},
        (),
    )
    assert tree.strategy == JobStrategy({"a": DEVICES}, {"a": engines})
