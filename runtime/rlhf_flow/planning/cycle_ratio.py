"""The seconds between two iterations of tasks that wait for each other, for ever: exactly. Pure.

Ends of tasks are longest paths through the arcs of all iterations (a linear system in the algebra
of maximum and sum). A path through many iterations is made of cycles of the arcs between the tasks
of one, so what a step takes in the long run is the largest ratio that a cycle has, of its tasks'
seconds to the iterations that it goes through. Ends after k iterations differ from k times this
ratio by no more than a constant.

Source: Baccelli, Cohen, Olsder and Quadrat, Synchronization and Linearity (1992), chapter 3. The
search is Lawler's (Combinatorial Optimization, 1976, chapter 3), with the next candidate taken from
the cycle that refutes the last one (Dinkelbach, On nonlinear fractional programming, 1967).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rlhf_flow.planning.event_graph import Arc, Cause, EventGraph

RELATIVE_TOLERANCE = 1e-12
"""Of all tasks' seconds: smaller differences are rounding."""


class Link(NamedTuple):
    """A node on a cycle, and why it waits for the one before it."""

    node: int
    iterations: int
    """How many iterations before its own that of the node before it is."""
    cause: Cause
    """Why it waits for it."""


class Cycle(NamedTuple):
    """Nodes each of which waits for the one before, the first for the last."""

    seconds: float
    """Of all its nodes."""
    iterations: int
    """Through how many it goes; at least 1."""
    links: tuple[Link, ...]
    """In the order in which they run, from the smallest node on."""

    @property
    def ratio(self) -> float:
        """Seconds for each iteration."""
        return self.seconds / self.iterations


def critical_cycle(graph: EventGraph) -> Cycle:
    """A cycle of the largest ratio: seconds between the ends of two iterations, in the long run.

    For a candidate ratio r every node gets as potential the longest path to it, where an arc counts
    the seconds of its source, less r for each iteration that it crosses. If there are such
    potentials, no cycle has a larger ratio: around one their differences sum up to zero, so its
    seconds are at most r times its iterations. If there are none, arcs that raise potentials for
    ever form a cycle of a larger ratio, which is the next candidate.

    Of several such cycles it is the same for the same graph.
    """
    end = len(graph.tasks)
    best = Cycle(0.0, 1, (Link(end, 1, Cause.DRIVER),))
    potentials = [0.0] * (end + 1)
    while (larger := _larger_cycle(graph, best.ratio, potentials)) and larger.ratio > best.ratio:
        best = larger
    return best


def _larger_cycle(graph: EventGraph, ratio: float, potentials: list[float]) -> Cycle | None:
    """A cycle of a larger ratio, or none; potentials may be any and are raised to proper ones."""
    seconds = graph.seconds
    tolerance = RELATIVE_TOLERANCE * sum(seconds)
    parents: list[Arc | None] = [None] * len(potentials)
    for _ in range(len(potentials) + 1):
        is_raised = False
        for node, arcs in enumerate(graph.arcs):
            found, highest = None, potentials[node] + tolerance
            for source, back in arcs:
                reached = potentials[source] + seconds[source] - ratio * back
                if reached > highest:
                    found, highest = (source, back), reached
            if found is not None:
                is_raised, parents[node], potentials[node] = True, found, highest
        if not is_raised:
            return None
        if (node_on_cycle := _on_cycle(parents)) is not None:
            return _cycle_through(node_on_cycle, parents, graph)
    raise AssertionError("potentials rise for ever only along a cycle")


def _on_cycle(parents: Sequence[Arc | None]) -> int | None:
    """A node that is, through others, its own parent; None where there is none."""
    visited = [-1] * len(parents)
    for start in range(len(parents)):
        node = start
        while visited[node] < 0:
            visited[node] = start
            arc = parents[node]
            if arc is None:
                break
            node = arc[0]
        else:
            if visited[node] == start:
                return node
    return None


def _cycle_through(node: int, parents: Sequence[Arc | None], graph: EventGraph) -> Cycle:
    links: list[Link] = []
    while not links or node != links[0].node:
        arc = parents[node]
        assert arc is not None
        links.append(Link(node, arc[1], graph.arcs[node][arc]))
        node = arc[0]
    links.reverse()
    first = min(range(len(links)), key=lambda index: links[index].node)
    ordered = (*links[first:], *links[:first])
    seconds = sum(graph.seconds[link.node] for link in ordered)
    return Cycle(seconds, sum(link.iterations for link in ordered), ordered)
