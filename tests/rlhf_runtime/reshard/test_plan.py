import dataclasses
from math import prod
from time import perf_counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlhf_runtime.reshard.errors import InvalidReshard
from rlhf_runtime.reshard.layout import Layout, Piece
from rlhf_runtime.reshard.plan import plan_reshard
from rlhf_runtime.reshard.rounds import plan_rounds
from rlhf_runtime.reshard.slices import TensorSlice, shard_slice
from rlhf_runtime.reshard.topology import Topology

from ...depth import examples
from . import model_layouts as ml
from .naive_plan import assert_carried_out, assert_elements


@st.composite
def layouts(draw: st.DrawFn, shapes: ml.Shapes, world_size: int) -> Layout:
    """Any legal layout: tensors cut along any dimension, parts on any ranks, some replicated."""
    pieces: list[list[Piece]] = [[] for _ in range(world_size)]
    for name, shape in shapes.items():
        dim = draw(st.integers(0, len(shape) - 1))
        num_parts = draw(st.integers(1, 4))
        for index in range(num_parts):
            box = shard_slice(shape, dim, index, num_parts)
            for rank in draw(st.sets(st.integers(0, world_size - 1), min_size=1)):
                pieces[rank].append(Piece(name, box))
    return Layout(shapes, tuple(tuple(p) for p in pieces))


SMALL: ml.Shapes = {"m": (5, 6), "n": (7,), "c": (2, 3, 4)}


@settings(max_examples=examples(150), deadline=None)
@given(st.data(), st.integers(1, 5))
def test_any_layout_becomes_any_other(data: st.DataObject, world_size: int) -> None:
    source = data.draw(layouts(SMALL, world_size))
    target = data.draw(layouts(SMALL, world_size))
    nodes = data.draw(st.lists(st.integers(0, 2), min_size=world_size, max_size=world_size))
    plan = plan_reshard(source, target, Topology.from_nodes(nodes))
    assert_carried_out(plan, source, target)
    assert_elements(plan, source, target, nodes)


@settings(max_examples=examples(50), deadline=None)
@given(st.integers(1, 40), st.integers(2, 5), st.integers(1, 4))
def test_equal_senders_send_alike(num_tensors: int, num_holders: int, num_targets: int) -> None:
    whole = tuple(Piece(f"w{i}", TensorSlice.full((4,))) for i in range(num_tensors))
    shapes = {piece.name: (4,) for piece in whole}
    source = Layout(shapes, (whole,) * num_holders + ((),) * num_targets)
    target = Layout(shapes, ((),) * num_holders + (whole,) * num_targets)
    for ranks_per_node in (None, num_holders):
        topology = Topology.regular(num_holders + num_targets, ranks_per_node)
        traffic = plan_reshard(source, target, topology).traffic
        for sent in (traffic.sent_within, traffic.sent_between):
            of_holders = sent[:num_holders]
            portion = 4 * -(-num_tensors // min(num_tensors, 16))
            assert max(of_holders) - min(of_holders) <= portion


def test_what_several_ranks_of_a_node_want_crosses_once_and_is_forwarded() -> None:
    whole = tuple(Piece(f"w{i}", TensorSlice.full((4,))) for i in range(6))
    shapes = {piece.name: (4,) for piece in whole}
    source = Layout(shapes, (whole, whole, (), (), ()))
    target = Layout(shapes, ((), (), whole, whole, whole))
    traffic = plan_reshard(source, target, Topology.from_nodes("aabbb")).traffic
    assert traffic.sent_between == (12, 12, 0, 0, 0)
    assert traffic.received_between == (0, 0, 8, 8, 8), "each receives a third for the node"
    assert traffic.sent_within == (0, 0, 16, 16, 16)
    assert traffic.received == (0, 0, 24, 24, 24)


def test_overlapping_source_pieces_are_sent_once() -> None:
    halves = tuple(Piece("w", TensorSlice((first,), (4,))) for first in (0, 2))
    source = Layout({"w": (6,)}, (halves[:1], halves[1:], ()))
    target = Layout({"w": (6,)}, ((), (), (Piece("w", TensorSlice.full((6,))),)))
    plan = plan_reshard(source, target)
    assert_carried_out(plan, source, target)
    assert plan.traffic.received == (0, 0, 6)


def test_replicas_share_the_sending() -> None:
    whole = tuple(Piece(f"w{i}", TensorSlice.full((4,))) for i in range(6))
    shapes = {piece.name: (4,) for piece in whole}
    plan = plan_reshard(Layout(shapes, (whole, whole, ())), Layout(shapes, ((), (), whole)))
    assert plan.traffic.sent == (12, 12, 0)


def test_a_sender_on_the_same_node_comes_first() -> None:
    whole = (Piece("w", TensorSlice.full((4,))),)
    source = Layout({"w": (4,)}, (whole, whole, (), ()))
    target = Layout({"w": (4,)}, ((), (), whole, whole))
    assert plan_reshard(source, target, Topology.from_nodes([0, 1, 1, 1])).traffic.sent == (
        0,
        8,
        0,
        0,
    )
    assert plan_reshard(source, target).traffic.sent == (4, 4, 0, 0)


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_fully_sharded_rows_become_tensor_parallel_shards(world_size: int) -> None:
    shapes = ml.with_norms_and_vocabulary(ml.matrices(2), hidden=64, vocabulary=300)
    source = ml.fully_sharded(shapes, world_size)
    places = [(0, rank % 2) for rank in range(world_size)]
    target = ml.model_parallel(shapes, places, 2, 1, 2)
    assert_carried_out(plan_reshard(source, target), source, target)


def test_ranks_beyond_the_rows_have_nothing_to_send() -> None:
    shapes: ml.Shapes = {"w": (5, 2)}
    source = ml.fully_sharded(shapes, 4)  # 2, 2, 1 and 0 rows
    target = Layout(shapes, tuple((Piece("w", TensorSlice.full((5, 2))),) for _ in range(4)))
    plan = plan_reshard(source, target)
    assert_carried_out(plan, source, target)
    assert plan.traffic.sent == (12, 12, 6, 0)
    assert plan.traffic.received == (6, 6, 8, 10)


def test_rows_that_pad_the_vocabulary_are_never_sent() -> None:
    shapes: ml.Shapes = {"lm_head.weight": (300, 8)}  # padded to 320: 160 and 140 real rows
    source = ml.fully_sharded(shapes, 2)  # 150 and 150
    target = ml.model_parallel(shapes, [(0, 0), (0, 1)], 2, 1, 1)
    plan = plan_reshard(source, target)
    assert plan.traffic.received == (10 * 8, 0)


def test_offload_gathers_everything_on_one_rank() -> None:
    shapes = ml.with_norms_and_vocabulary(ml.matrices(1), hidden=64, vocabulary=100)
    everything = tuple(Piece(name, TensorSlice.full(shape)) for name, shape in shapes.items())
    source = ml.fully_sharded(shapes, 3)
    target = Layout(shapes, ((), everything, ()))
    plan = plan_reshard(source, target)
    assert_carried_out(plan, source, target)
    assert plan.traffic.kept == (0, source.num_elements(1), 0)
    assert plan.traffic.sent[0] == source.num_elements(0)


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


def test_an_element_that_a_rank_wants_twice_is_refused() -> None:
    whole, top = Piece("w", TensorSlice.full((4,))), Piece("w", TensorSlice((0,), (2,)))
    layout = Layout({"w": (4,)}, ((whole,), (whole,)))
    with pytest.raises(InvalidReshard, match="'w' on rank 1"):
        plan_reshard(layout, dataclasses.replace(layout, pieces=((whole,), (whole, top))))


def test_layouts_that_do_not_fit_are_refused() -> None:
    one = Layout({"w": (4,)}, ((Piece("w", TensorSlice.full((4,))),),))
    with pytest.raises(InvalidReshard, match="got 1 source ranks, 2 target ranks"):
        plan_reshard(one, dataclasses.replace(one, pieces=(*one.pieces, ())))
    with pytest.raises(InvalidReshard, match="'w' in the target only"):
        plan_reshard(Layout({}, ((),)), one)
    with pytest.raises(InvalidReshard, match=r"'w' has two shapes: got \(4,\).*\(8,\)"):
        plan_reshard(one, Layout({"w": (8,)}, ((Piece("w", TensorSlice.full((8,))),),)))


def test_70b_parameters_on_128_ranks_are_planned_in_about_a_second() -> None:
    shapes = ml.with_norms_and_vocabulary(ml.matrices(80, 8192, 28672, 1024), 8192, 128256)
    start = perf_counter()
    source = ml.model_parallel(shapes, ml.training_places(1, 8, 16), 8, 1, 80)
    target = ml.model_parallel(shapes, ml.strided_places(1, 8, 16, 1, 2), 2, 1, 80)
    plan = plan_reshard(source, target, Topology.regular(128, 8))
    rounds = plan_rounds(plan, 77, 1 << 27)
    assert perf_counter() - start < 5, "0.3 s on an idle core"
    assert len(plan.batches) < 10, "the work does not grow with the layers"
    assert set(plan.traffic.received_between) == {0}
    size = sum(prod(shape) for name, shape in shapes.items() if len(shape) == 2)
    assert set(plan.traffic.received) == {3 * size // 8}
    moved = sum(move.box.volume for _, moves in rounds for move in moves)
    assert moved == plan.traffic.sent[77] + plan.traffic.received[77]
    assert len(rounds) <= 2 * moved / (1 << 27)
