from itertools import combinations
from math import prod

import pytest

from rlhf_runtime.reshard.errors import PlanError
from rlhf_runtime.reshard.grouping import Groups, choose_groups, layout_of, regular_groupings
from rlhf_runtime.reshard.layout import Layout, Pieces
from rlhf_runtime.reshard.plan import plan_reshard
from rlhf_runtime.reshard.tensor_parallel import tensor_parallel_pieces
from rlhf_runtime.reshard.topology import Topology

from . import model_layouts as ml

SHAPES = ml.with_norms_and_vocabulary(ml.matrices(2), 64, 256)


def parts(size: int, shapes: ml.Shapes = SHAPES) -> list[Pieces]:
    return [tensor_parallel_pieces(shapes, index, size, 8) for index in range(size)]


def moved(source: Layout, groups: Groups) -> int:
    target = layout_of(source, parts(len(groups[0])), groups)
    return sum(plan_reshard(source, target).traffic.received)


def megatron(t: int, d: int) -> Layout:
    return ml.model_parallel(SHAPES, ml.training_places(1, t, d), t, 1, 2)


def test_under_megatron_they_are_hybridflows() -> None:
    assert choose_groups(megatron(4, 2), parts(2)) == ((0, 2), (1, 3), (4, 6), (5, 7))
    assert choose_groups(megatron(4, 1), parts(4)) == ((0, 1, 2, 3),)
    assert choose_groups(megatron(2, 2), parts(2)) == ((0, 1), (2, 3))


def test_fully_sharded_ranks_are_grouped_a_whole_part_apart() -> None:
    source = ml.fully_sharded(SHAPES, 4)
    groups = choose_groups(source, parts(2))
    assert groups == ((0, 2), (1, 3))
    assert moved(source, groups) < moved(source, ((0, 1), (2, 3)))


def test_rows_alone_move_a_third_of_gathering_everything_against_a_half() -> None:
    shapes: ml.Shapes = {"model.layers.0.mlp.up_proj.weight": (16, 4)}
    source = ml.fully_sharded(shapes, 4)
    gathering = 4 * 3 * 16

    def ratio(groups: Groups) -> float:
        plan = plan_reshard(source, layout_of(source, parts(2, shapes), groups))
        return gathering / sum(plan.traffic.received)

    assert ratio(((0, 2), (1, 3))) == 3
    assert ratio(((0, 1), (2, 3))) == 2


def all_groupings(ranks: tuple[int, ...], size: int) -> list[Groups]:
    if not ranks:
        return [()]
    first, *others = ranks
    found = []
    for members in combinations(others, size - 1):
        left = tuple(rank for rank in others if rank not in members)
        found += [((first, *members), *rest) for rest in all_groupings(left, size)]
    return found


@pytest.mark.parametrize(
    ("source", "size"),
    [
        (megatron(8, 1), 2),
        (megatron(8, 1), 4),
        (megatron(4, 2), 2),
        (megatron(4, 2), 4),
        (megatron(2, 4), 2),
        (ml.fully_sharded(SHAPES, 8), 2),
        (ml.fully_sharded(SHAPES, 8), 4),
    ],
    ids=["t8-2", "t8-4", "t4-2", "t4-4", "t2-2", "fsdp-2", "fsdp-4"],
)
def test_where_groups_do_not_grow_no_ascending_grouping_moves_less(
    source: Layout, size: int
) -> None:
    best = min(moved(source, groups) for groups in all_groupings(tuple(range(8)), size))
    assert moved(source, choose_groups(source, parts(size))) == best


def test_groups_stay_within_nodes_even_if_more_moves() -> None:
    source = ml.fully_sharded(SHAPES, 8)
    groups = choose_groups(source, parts(2), Topology.regular(8, 4))
    assert groups == ((0, 1), (2, 3), (4, 5), (6, 7))
    assert choose_groups(source, parts(2)) == ((0, 4), (1, 5), (2, 6), (3, 7))


def test_all_regular_groupings_are_ascending_and_disjoint() -> None:
    found = regular_groupings(12, 2)
    assert len(found) == 4  # strides 1, 2, 3 and 6
    for groups in found:
        assert sorted(rank for group in groups for rank in group) == list(range(12))
        assert all(list(group) == sorted(group) for group in groups)
    with pytest.raises(PlanError, match="got 12 ranks and groups of 5"):
        regular_groupings(12, 5)


def test_70b_on_128_ranks_is_grouped_quickly() -> None:
    shapes = ml.with_norms_and_vocabulary(ml.matrices(80, 8192, 28672, 1024), 8192, 128256)
    assert prod(shapes["lm_head.weight"]) > 1e9
    source = ml.model_parallel(shapes, ml.training_places(1, 8, 16), 8, 1, 80)
    groups = choose_groups(source, parts(2, shapes), Topology.regular(128, 8))
    assert groups[:5] == ((0, 4), (1, 5), (2, 6), (3, 7), (8, 12))
