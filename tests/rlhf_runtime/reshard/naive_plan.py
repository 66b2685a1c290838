"""The naive form of a plan: on full tensors, and every element by itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import product
from math import prod

import torch

from rlhf_runtime.reshard.layout import Layout
from rlhf_runtime.reshard.plan import ReshardPlan
from rlhf_runtime.reshard.slices import TensorSlice


def assert_carried_out(plan: ReshardPlan, source: Layout, target: Layout) -> None:
    """The oracle: carry the plan out on full tensors and compare every target piece."""
    full = {
        name: torch.arange(1, prod(shape) + 1).reshape(shape)
        for name, shape in source.shapes.items()
    }
    held = [{name: torch.zeros_like(t) for name, t in full.items()} for _ in source.pieces]
    for rank, pieces in enumerate(source.pieces):
        for name, box in pieces:
            index = box.slices_in(TensorSlice.full(full[name].shape))
            held[rank][name][index] = full[name][index]
    got = [{name: torch.zeros_like(t) for name, t in full.items()} for _ in source.pieces]
    for moves, holds in (((*plan.copies, *plan.direct), held), (plan.forwarded, got)):
        for move in moves:
            index = move.box.slices_in(TensorSlice.full(full[move.name].shape))
            assert (got[move.target_rank][move.name][index] == 0).all(), f"sent twice: {move}"
            got[move.target_rank][move.name][index] = holds[move.source_rank][move.name][index]
    for rank, pieces in enumerate(target.pieces):
        for name, box in pieces:
            index = box.slices_in(TensorSlice.full(full[name].shape))
            assert torch.equal(got[rank][name][index], full[name][index])


def assert_elements(
    plan: ReshardPlan, source: Layout, target: Layout, nodes: Sequence[int]
) -> None:
    """The naive form: every element by itself. Who can have it from whom, and what is counted."""
    held, wanted = elements(source), elements(target)
    sent: Counter[tuple[int, bool]] = Counter()
    received: Counter[tuple[int, bool]] = Counter()
    entered: set[tuple[int, Element]] = set()
    arrived: list[set[Element]] = [set() for _ in nodes]
    for moves, having in ((plan.direct, held), (plan.forwarded, arrived)):
        for move in moves:
            crosses = nodes[move.source_rank] != nodes[move.target_rank]
            for element in elements_of(move.name, move.box):
                assert element in having[move.source_rank]
                assert element in wanted[move.target_rank] - held[move.target_rank]
                if crosses:
                    node = nodes[move.target_rank]
                    assert not any(element in held[r] for r, n in enumerate(nodes) if n == node)
                    assert (node, element) not in entered, "crosses into a node once"
                    entered.add((node, element))
                arrived[move.target_rank].add(element)
                sent[move.source_rank, crosses] += 1
                received[move.target_rank, crosses] += 1
    traffic = plan.traffic
    for rank in range(len(nodes)):
        assert arrived[rank] == wanted[rank] - held[rank]
        assert traffic.kept[rank] == len(wanted[rank] & held[rank])
        assert traffic.sent_within[rank] == sent[rank, False]
        assert traffic.sent_between[rank] == sent[rank, True]
        assert traffic.received_within[rank] == received[rank, False]
        assert traffic.received_between[rank] == received[rank, True]


Element = tuple[str, tuple[int, ...]]


def elements_of(name: str, box: TensorSlice) -> Iterator[Element]:
    ranges = [range(first, last) for first, last in zip(box.start, box.stop, strict=True)]
    return ((name, index) for index in product(*ranges))


def elements(layout: Layout) -> list[set[Element]]:
    return [
        {element for name, box in pieces for element in elements_of(name, box)}
        for pieces in layout.pieces
    ]
