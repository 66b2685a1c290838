import dataclasses
from math import prod
from time import perf_counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlhf_runtime.reshard.accounting import peak_elements, redundant_elements
from rlhf_runtime.reshard.boxes import Box, cut
from rlhf_runtime.reshard.errors import PlanError
from rlhf_runtime.reshard.layout import Layout, Piece
from rlhf_runtime.reshard.plan import ReshardPlan, plan_reshard

from . import model_layouts as ml


def carried_out(plan: ReshardPlan, source: Layout, target: Layout) -> None:
    """The oracle: carry the plan out on full tensors and compare every target piece."""
    full = {
        name: torch.arange(1, prod(shape) + 1).reshape(shape)
        for name, shape in source.shapes.items()
    }
    held = [{name: torch.zeros_like(t) for name, t in full.items()} for _ in source.pieces]
    for rank, pieces in enumerate(source.pieces):
        for name, box in pieces:
            index = box.slices_in(Box.whole(full[name].shape))
            held[rank][name][index] = full[name][index]
    got = [{name: torch.zeros_like(t) for name, t in full.items()} for _ in source.pieces]
    for move in (*plan.moves, *plan.copies):
        index = move.box.slices_in(Box.whole(full[move.name].shape))
        assert (got[move.target_rank][move.name][index] == 0).all(), f"sent twice: {move}"
        got[move.target_rank][move.name][index] = held[move.source_rank][move.name][index]
    for rank, pieces in enumerate(target.pieces):
        for name, box in pieces:
            index = box.slices_in(Box.whole(full[name].shape))
            assert torch.equal(got[rank][name][index], full[name][index])


@st.composite
def layouts(draw: st.DrawFn, shapes: ml.Shapes, world_size: int) -> Layout:
    """Any legal layout: tensors cut along any dimension, parts on any ranks, some replicated."""
    pieces: list[list[Piece]] = [[] for _ in range(world_size)]
    for name, shape in shapes.items():
        dim = draw(st.integers(0, len(shape) - 1))
        num_parts = draw(st.integers(1, 4))
        for index in range(num_parts):
            box = cut(shape, dim, index, num_parts)
            for rank in draw(st.sets(st.integers(0, world_size - 1), min_size=1)):
                pieces[rank].append(Piece(name, box))
    return Layout(shapes, tuple(tuple(p) for p in pieces))


SMALL: ml.Shapes = {"m": (5, 6), "n": (7,), "c": (2, 3, 4)}


@settings(max_examples=150, deadline=None)
@given(st.data(), st.integers(1, 5))
def test_any_layout_becomes_any_other(data: st.DataObject, world_size: int) -> None:
    source = data.draw(layouts(SMALL, world_size))
    target = data.draw(layouts(SMALL, world_size))
    nodes = data.draw(st.lists(st.integers(0, 1), min_size=world_size, max_size=world_size))
    plan = plan_reshard(source, target, nodes)
    carried_out(plan, source, target)
    holders = source.holders()
    for rank in range(world_size):
        assert plan.sent[rank] == sum(m.box.volume for m in plan.moves if m.source_rank == rank)
        assert plan.received[rank] == sum(m.box.volume for m in plan.moves if m.target_rank == rank)
        assert plan.kept[rank] == sum(m.box.volume for m in plan.copies if m.target_rank == rank)
        assert plan.received[rank] + plan.kept[rank] == target.num_elements(rank)
    for move in plan.moves:
        able = {
            r for box, ranks in holders[move.name].items() if box.contains(move.box) for r in ranks
        }
        assert move.target_rank not in able, "held by the rank itself"
        near = {r for r in able if nodes[r] == nodes[move.target_rank]}
        assert move.source_rank in (near or able)


def test_overlapping_source_pieces_are_sent_once() -> None:
    halves = tuple(Piece("w", Box((first,), (4,))) for first in (0, 2))
    source = Layout({"w": (6,)}, (halves[:1], halves[1:], ()))
    target = Layout({"w": (6,)}, ((), (), (Piece("w", Box.whole((6,))),)))
    plan = plan_reshard(source, target)
    carried_out(plan, source, target)
    assert plan.received == (0, 0, 6)


def test_replicas_share_the_sending() -> None:
    whole = tuple(Piece(f"w{i}", Box.whole((4,))) for i in range(6))
    shapes = {piece.name: (4,) for piece in whole}
    plan = plan_reshard(Layout(shapes, (whole, whole, ())), Layout(shapes, ((), (), whole)))
    assert plan.sent == (12, 12, 0)


def test_a_sender_on_the_same_node_comes_first() -> None:
    whole = (Piece("w", Box.whole((4,))),)
    source = Layout({"w": (4,)}, (whole, whole, (), ()))
    target = Layout({"w": (4,)}, ((), (), whole, whole))
    assert plan_reshard(source, target, [0, 1, 1, 1]).sent == (0, 8, 0, 0)
    assert plan_reshard(source, target).sent == (4, 4, 0, 0)


GROUPINGS = [(1, 4, 2, 1, 2), (1, 8, 1, 1, 2), (2, 4, 1, 1, 2), (4, 2, 2, 2, 2), (2, 2, 1, 2, 1)]


@pytest.mark.parametrize(("p", "t", "d", "p_g", "t_g"), GROUPINGS)
def test_strided_groups_move_and_keep_what_the_paper_says(
    p: int, t: int, d: int, p_g: int, t_g: int
) -> None:
    shapes = ml.matrices(num_layers=4)
    size = sum(prod(shape) for shape in shapes.values())
    source = ml.model_parallel(shapes, ml.training_places(p, t, d), t, p, 4)
    target = ml.model_parallel(shapes, ml.strided_places(p, t, d, p_g, t_g), t_g, p_g, 4)
    plan = plan_reshard(source, target)
    carried_out(plan, source, target)
    for rank in range(p * t * d):
        assert plan.received[rank] * t_g * p_g * t * p == (t * p - t_g * p_g) * size
        assert peak_elements(source, target, plan, rank) * t_g * p_g == size
        assert redundant_elements(source, plan, rank) == 0


def test_consecutive_groups_leave_redundant_shards_on_the_middle_ranks() -> None:
    shapes = ml.matrices(num_layers=1)
    size = sum(prod(shape) for shape in shapes.values())
    source = ml.model_parallel(shapes, ml.training_places(1, 4, 1), 4, 1, 1)
    target = ml.model_parallel(shapes, ml.consecutive_places(1, 4, 1, 1, 2), 2, 1, 1)
    plan = plan_reshard(source, target)
    assert [4 * redundant_elements(source, plan, rank) for rank in range(4)] == [0, size, size, 0]
    assert [4 * received for received in plan.received] == [size, 2 * size, 2 * size, size]


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_fully_sharded_rows_become_tensor_parallel_shards(world_size: int) -> None:
    shapes = ml.with_norms_and_vocabulary(ml.matrices(2), hidden=64, vocabulary=300)
    source = ml.fully_sharded(shapes, world_size)
    places = [(0, rank % 2) for rank in range(world_size)]
    target = ml.model_parallel(shapes, places, 2, 1, 2)
    carried_out(plan_reshard(source, target), source, target)


def test_ranks_beyond_the_rows_have_nothing_to_send() -> None:
    shapes: ml.Shapes = {"w": (5, 2)}
    source = ml.fully_sharded(shapes, 4)  # 2, 2, 1 and 0 rows
    target = Layout(shapes, tuple((Piece("w", Box.whole((5, 2))),) for _ in range(4)))
    plan = plan_reshard(source, target)
    carried_out(plan, source, target)
    assert plan.sent == (12, 12, 6, 0)
    assert plan.received == (6, 6, 8, 10)


def test_rows_that_pad_the_vocabulary_are_never_sent() -> None:
    shapes: ml.Shapes = {"lm_head.weight": (300, 8)}  # padded to 320: 160 and 140 real rows
    source = ml.fully_sharded(shapes, 2)  # 150 and 150
    target = ml.model_parallel(shapes, [(0, 0), (0, 1)], 2, 1, 1)
    plan = plan_reshard(source, target)
    assert plan.received == (10 * 8, 0)


def test_offload_gathers_everything_on_one_rank() -> None:
    shapes = ml.with_norms_and_vocabulary(ml.matrices(1), hidden=64, vocabulary=100)
    everything = tuple(Piece(name, Box.whole(shape)) for name, shape in shapes.items())
    source = ml.fully_sharded(shapes, 3)
    target = Layout(shapes, ((), everything, ()))
    plan = plan_reshard(source, target)
    carried_out(plan, source, target)
    assert plan.kept == (0, source.num_elements(1), 0)
    assert plan.sent[0] == source.num_elements(0)


def test_the_plan_does_not_depend_on_the_order_of_names() -> None:
    shapes = ml.matrices(2)
    source, target = (
        ml.fully_sharded(shapes, 4),
        ml.model_parallel(shapes, [(0, rank % 2) for rank in range(4)], 2, 1, 2),
    )
    backwards = dict(reversed(shapes.items()))
    assert plan_reshard(source, target) == plan_reshard(
        dataclasses.replace(source, shapes=backwards), dataclasses.replace(target, shapes=backwards)
    )


def test_layouts_that_do_not_fit_are_refused() -> None:
    one = Layout({"w": (4,)}, ((Piece("w", Box.whole((4,))),),))
    with pytest.raises(PlanError, match="got 1 source ranks, 2 target ranks"):
        plan_reshard(one, dataclasses.replace(one, pieces=(*one.pieces, ())))
    with pytest.raises(PlanError, match="'w' in the target only"):
        plan_reshard(Layout({}, ((),)), one)
    with pytest.raises(PlanError, match=r"'w' has two shapes: got \(4,\).*\(8,\)"):
        plan_reshard(one, Layout({"w": (8,)}, ((Piece("w", Box.whole((8,))),),)))


def test_thousands_of_tensors_on_64_ranks_plan_within_seconds() -> None:
    shapes = ml.with_norms_and_vocabulary(ml.matrices(290), hidden=64, vocabulary=320)
    assert len(shapes) > 2000
    source = ml.model_parallel(shapes, ml.training_places(1, 8, 8), 8, 1, 290)
    target = ml.model_parallel(shapes, ml.strided_places(1, 8, 8, 1, 2), 2, 1, 290)
    start = perf_counter()
    plan = plan_reshard(source, target)
    assert perf_counter() - start < 10, "about one second on an idle core"
    assert len(plan.moves) > 300_000
