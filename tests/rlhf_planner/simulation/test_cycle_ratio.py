"""The largest cycle ratio, against all cycles."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlhf_planner.simulation.event_graph import (
    EventGraph,
    Task,
    critical_cycle,
    critical_ratio,
    dependency_graph,
    event_graph,
)

from ...depth import examples
from .random_tasks import passes_ahead, steps


def all_ratios(graph: EventGraph) -> Iterator[Fraction]:
    """Of every simple cycle, each found from its smallest node on."""
    for start in range(len(graph.arcs)):
        paths = [((start,), Fraction(0), 0)]
        while paths:
            path, seconds, iterations = paths.pop()
            seconds += Fraction(graph.seconds[path[-1]])
            for source, back in graph.arcs[path[-1]]:
                if source == start:
                    yield seconds / (iterations + back)
                elif source > start and source not in path:
                    paths.append(((*path, source), seconds, iterations + back))


@settings(max_examples=examples(60))
@given(steps(most_tasks=5), passes_ahead, st.booleans())
def test_no_cycle_has_a_larger_ratio(tasks: list[Task], ahead: int, ranks_count: bool) -> None:
    graph = (event_graph if ranks_count else dependency_graph)(tasks, ahead)
    cycle = critical_cycle(graph)
    assert Fraction(cycle.seconds) / cycle.iterations == max(all_ratios(graph))


@settings(max_examples=examples(60))
@given(steps(), passes_ahead)
def test_a_graph_gives_the_ratio_for_other_seconds(tasks: list[Task], ahead: int) -> None:
    without = [replace(task, seconds=0.0) for task in tasks]
    graph = event_graph(tasks, ahead)
    ratio = critical_ratio(event_graph(without, ahead), graph.seconds)
    assert ratio == pytest.approx(critical_cycle(graph).ratio, rel=1e-9)


@settings(max_examples=examples(60))
@given(steps(), passes_ahead)
def test_the_cycle_is_one_of_the_graph(tasks: list[Task], ahead: int) -> None:
    graph = event_graph(tasks, ahead)
    cycle = critical_cycle(graph)
    before = (cycle.links[-1], *cycle.links)
    for source, link in zip(before, cycle.links, strict=False):
        assert graph.arcs[link.node][source.node, link.iterations] is link.cause
    assert cycle.seconds == sum(graph.seconds[link.node] for link in cycle.links)
    assert cycle.iterations == sum(link.iterations for link in cycle.links) >= 1
    nodes = [link.node for link in cycle.links]
    assert len(set(nodes)) == len(nodes)
    assert nodes[0] == min(nodes)


@settings(max_examples=examples(60))
@given(steps(), st.floats(1e-6, 1e6))
def test_other_units_give_other_numbers_and_nothing_else(tasks: list[Task], unit: float) -> None:
    scaled = [
        Task(task.id, task.seconds * unit, task.ranks, task.after, task.after_previous)
        for task in tasks
    ]
    plain = [Task(t.id, t.seconds, t.ranks, t.after, t.after_previous) for t in tasks]
    ratio = critical_cycle(event_graph(plain)).ratio
    assert critical_cycle(event_graph(scaled)).ratio == pytest.approx(ratio * unit, rel=1e-9)


def test_nothing_takes_no_time() -> None:
    assert critical_cycle(event_graph([])).ratio == 0
    assert critical_cycle(event_graph([Task("x", 0.0)])).ratio == 0
