from fractions import Fraction
from math import prod

import pytest

from rlhf_runtime.reshard.accounting import (
    RankCost,
    gathering_costs,
    reshard_costs,
    select_tensors,
    tensor_parallel_pieces,
    tensors_by_cut,
)
from rlhf_runtime.reshard.layout import Layout
from rlhf_runtime.reshard.plan import plan_reshard
from rlhf_runtime.reshard.topology import Topology

from . import model_layouts as ml

GROUPINGS = [(1, 4, 2, 1, 2), (1, 8, 1, 1, 2), (2, 4, 1, 1, 2), (4, 2, 2, 2, 2), (2, 2, 1, 2, 1)]
LAYERS = 4


def size_of(layout: Layout) -> int:
    return sum(prod(shape) for shape in layout.shapes.values())


def in_models(layout: Layout, accounts: tuple[RankCost, ...]) -> set[tuple[Fraction, Fraction]]:
    """What the ranks receive and hold at most, as shares of the model."""
    size = size_of(layout)
    return {(Fraction(a.received, size), Fraction(a.peak, size)) for a in accounts}


def worst_redundancy(layout: Layout, accounts: tuple[RankCost, ...]) -> Fraction:
    return Fraction(max(a.redundant for a in accounts), size_of(layout))


@pytest.mark.parametrize(("p", "t", "d", "p_g", "t_g"), GROUPINGS)
def test_strided_groups_cost_what_table_2_says(p: int, t: int, d: int, p_g: int, t_g: int) -> None:
    shapes = ml.matrices(LAYERS)
    source = ml.model_parallel(shapes, ml.training_places(p, t, d), t, p, LAYERS)
    target = ml.model_parallel(shapes, ml.strided_places(p, t, d, p_g, t_g), t_g, p_g, LAYERS)
    accounts = reshard_costs(source, target, plan_reshard(source, target))
    moved = Fraction(t * p - t_g * p_g, t_g * p_g * t * p)
    assert in_models(source, accounts) == {(moved, Fraction(1, t_g * p_g))}
    assert worst_redundancy(source, accounts) == 0


@pytest.mark.parametrize(("p", "t", "d", "p_g", "t_g"), GROUPINGS[:4])
def test_gathering_in_training_groups_costs_what_table_2_says(
    p: int, t: int, d: int, p_g: int, t_g: int
) -> None:
    shapes = ml.matrices(LAYERS)
    source = ml.model_parallel(shapes, ml.training_places(p, t, d), t, p, LAYERS)
    target = ml.model_parallel(shapes, ml.consecutive_places(p, t, d, p_g, t_g), t_g, p_g, LAYERS)
    accounts = gathering_costs(source, target)
    assert in_models(source, accounts) == {(1 - Fraction(1, t * p), Fraction(1))}
    assert worst_redundancy(source, accounts) == Fraction(1, t * p)


@pytest.mark.parametrize(("world_size", "t_g"), [(4, 2), (8, 2), (8, 4)])
def test_gathering_fully_sharded_tensors_costs_what_table_2_says(world_size: int, t_g: int) -> None:
    shapes = ml.matrices(LAYERS)
    places = ml.consecutive_places(1, world_size, 1, 1, t_g)
    source = ml.fully_sharded(shapes, world_size)
    target = ml.model_parallel(shapes, places, t_g, 1, LAYERS)
    names = tensors_by_cut(source, target)[f"rows in {world_size} -> rows in {t_g}"]
    assert len(names) == 5 * LAYERS
    source, target = select_tensors(source, names), select_tensors(target, names)
    accounts = gathering_costs(source, target)
    assert in_models(source, accounts) == {(1 - Fraction(1, world_size), Fraction(1))}
    assert worst_redundancy(source, accounts) == Fraction(1, world_size)


def test_consecutive_groups_leave_redundant_shards_on_the_middle_ranks() -> None:
    shapes = ml.matrices(num_layers=1)
    size = sum(prod(shape) for shape in shapes.values())
    source = ml.model_parallel(shapes, ml.training_places(1, 4, 1), 4, 1, 1)
    target = ml.model_parallel(shapes, ml.consecutive_places(1, 4, 1, 1, 2), 2, 1, 1)
    accounts = reshard_costs(source, target, plan_reshard(source, target, Topology.regular(4, 2)))
    assert [4 * a.redundant for a in accounts] == [0, size, size, 0]
    assert [4 * a.peak for a in accounts] == [2 * size, 3 * size, 3 * size, 2 * size]
    assert [4 * a.received for a in accounts] == [size, 2 * size, 2 * size, size]
    assert [4 * a.received_between for a in accounts] == [0, 2 * size, 2 * size, 0]


def test_kinds_tell_apart_what_is_cut_in_other_ways() -> None:
    shapes = ml.with_norms_and_vocabulary(ml.matrices(2, 64, 128, 16), 64, 256)

    def layout(size: int) -> Layout:
        parts = [tensor_parallel_pieces(shapes, index, size, 2) for index in range(size)]
        return Layout(shapes, tuple(parts[rank % size] for rank in range(8)))

    source, target = layout(8), layout(4)
    kinds = tensors_by_cut(source, target)
    assert {kind: len(names) for kind, names in kinds.items()} == {
        "rows in 8 -> rows in 4": 2 * 3 + 2,
        "rows in 2 -> rows in 2": 2 * 2,
        "columns in 8 -> columns in 4": 2 * 2,
        "whole -> whole": 2 + 1,
    }
    plan = plan_reshard(source, target)
    whole = reshard_costs(source, target, plan)
    parts = [
        reshard_costs(one, other, plan_reshard(one, other))
        for names in kinds.values()
        for one, other in [(select_tensors(source, names), select_tensors(target, names))]
    ]
    for field in range(len(RankCost._fields)):
        for rank in range(8):
            assert whole[rank][field] == sum(part[rank][field] for part in parts)
    heads = kinds["rows in 2 -> rows in 2"]
    one, other = select_tensors(source, heads), select_tensors(target, heads)
    accounts = reshard_costs(one, other, plan_reshard(one, other))
    part = 2 * 2 * 8 * 64  # two layers' k and v, one of two heads
    assert [a.received for a in accounts] == [part * (r // 4 != r % 4 // 2) for r in range(8)]
