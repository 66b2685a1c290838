"""Plans between any two ways to cut a decoder over pipeline, tensor and data ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlhf_runtime.reshard.accounting import reshard_costs, tensor_parallel_pieces
from rlhf_runtime.reshard.layout import Layout, Piece
from rlhf_runtime.reshard.plan import plan_reshard
from rlhf_runtime.reshard.topology import Topology

from ...depth import examples
from . import model_layouts as ml
from .naive_plan import assert_carried_out, assert_elements


class Model(NamedTuple):
    """A decoder of these weights."""

    shapes: ml.Shapes
    num_layers: int
    num_key_value_heads: int

    def layout(self, parallelism: Sequence[int], ranks: Sequence[int], world_size: int) -> Layout:
        """Cut p-t-d over some ranks of a world, in their order; the others hold nothing."""
        p, t, d = parallelism
        pieces: list[tuple[Piece, ...]] = [()] * world_size
        for rank, (stage, index) in zip(ranks, ml.training_places(p, t, d), strict=False):
            of_rank = tensor_parallel_pieces(self.shapes, index, t, self.num_key_value_heads)
            pieces[rank] = tuple(
                piece
                for piece in of_rank
                if ml.is_on_stage(piece.name, stage, p, self.num_layers, self.shapes)
            )
        return Layout(self.shapes, tuple(pieces))


@st.composite
def models(draw: st.DrawFn) -> Model:
    """Of any sizes: heads, columns and the vocabulary need not come out even over any ranks, norms
    are whole everywhere, and the embedding may be the output projection, too."""
    size = st.integers(1, 5)
    hidden, middle, num_layers, heads = draw(size), draw(size), draw(size), draw(size)
    layer: ml.Shapes = {
        "self_attn.q_proj.weight": (2 * heads * draw(size), hidden),
        "self_attn.k_proj.weight": (heads * draw(size), hidden),
        "self_attn.k_proj.bias": (heads,),
        "self_attn.o_proj.weight": (hidden, draw(size)),
        "mlp.up_proj.weight": (middle, hidden),
        "mlp.down_proj.weight": (hidden, middle),
    }
    shapes = {
        f"model.layers.{n}.{name}": shape
        for n in range(num_layers)
        for name, shape in layer.items()
    }
    shapes = ml.with_norms_and_vocabulary(shapes, hidden, draw(st.integers(1, 80)))
    if draw(st.booleans()):
        del shapes["lm_head.weight"]
    return Model(shapes, num_layers, heads)


@st.composite
def cuts(draw: st.DrawFn, world_size: int) -> tuple[int, int, int]:
    """p-t-d on at most so many ranks."""
    p = draw(st.integers(1, world_size))
    t = draw(st.integers(1, world_size // p))
    return p, t, draw(st.integers(1, world_size // (p * t)))


@settings(max_examples=examples(80), deadline=None)
@given(st.data(), models(), st.integers(1, 8), st.integers(1, 8))
def test_any_parallelism_becomes_any_other(
    data: st.DataObject, model: Model, world_size: int, ranks_per_node: int
) -> None:
    """It grows, shrinks or moves: from some ranks in any order to others in any order."""
    source, target = (
        model.layout(
            data.draw(cuts(world_size)), data.draw(st.permutations(range(world_size))), world_size
        )
        for _ in range(2)
    )
    topology = Topology.regular(world_size, ranks_per_node)
    plan = plan_reshard(source, target, topology)
    assert_carried_out(plan, source, target)
    assert_elements(plan, source, target, topology.nodes)


@pytest.mark.parametrize(
    ("before", "after", "received"),
    [
        ((1, 1, 4), (1, 4, 1), [0, 0, 0, 0]),  # every rank has its quarter already
        ((1, 1, 4), (4, 1, 1), [0, 0, 0, 0]),
        ((1, 1, 4), (2, 2, 1), [0, 0, 0, 0]),
        ((1, 2, 2), (1, 4, 1), [0, 1, 1, 0]),  # halves 0 1 0 1, quarters 0 1 2 3
        ((2, 1, 2), (4, 1, 1), [0, 1, 1, 0]),
        ((1, 2, 2), (2, 2, 1), [0, 0, 0, 0]),  # a layer more or less of the same half
        ((1, 4, 1), (4, 1, 1), [3, 3, 3, 3]),  # of a layer it has a quarter
    ],
)
def test_parallelism_that_grows_costs_what_the_cuts_differ_by(
    before: tuple[int, int, int], after: tuple[int, int, int], received: list[int]
) -> None:
    model = Model(ml.matrices(4), 4, 4)
    source, target = (model.layout(each, range(4), 4) for each in (before, after))
    accounts = reshard_costs(source, target, plan_reshard(source, target))
    parts = 16 if before == (1, 4, 1) else 4
    size = sum(rows * columns for rows, columns in model.shapes.values())
    assert [each.received * parts for each in accounts] == [size * each for each in received]
    for rank, each in enumerate(accounts):
        kept = size // 4 - each.received
        assert each.redundant == source.num_elements(rank) - kept
        assert each.peak == size // 4 + each.redundant
