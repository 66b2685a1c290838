"""How long a step takes at least, whatever the order of its tasks. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from rlhf_planner.simulation.event_graph import (
    PASSES_AHEAD,
    EventGraph,
    Task,
    critical_cycle,
    dependency_graph,
    event_graph,
)


def step_seconds(tasks: Sequence[Task], passes_ahead: int = PASSES_AHEAD) -> float:
    """Seconds of a step in the long run, without simulating iterations; as `step_lower_bound`."""
    return critical_cycle(event_graph(tasks, passes_ahead)).ratio


def step_lower_bound(tasks: Sequence[Task], passes_ahead: int = PASSES_AHEAD) -> float:
    """Seconds that a step takes at least in the long run, for tasks of these durations on these
    ranks in any order that their dependencies allow.

    It is the larger of two:

    - The longest chain of dependencies from a task to the same task of a later iteration, for each
      iteration that it crosses: `critical_cycle` where ranks hold nothing up.
    - The work of the busiest ranks, or of the busiest other resource. Where the driver waits for
      each pass (passes_ahead 0), they also stand still in each pass until the first of their tasks
      may start, and after the last of them while others go on: the least time before any of their
      tasks, and the least time after any of them.

    Args:
        tasks: of one iteration, in program order.
        passes_ahead: passes that the driver sends before the one that runs is over.

    Raises:
        FlowError: as `event_graph`.
    """
    graph = dependency_graph(tasks, passes_ahead)
    chain = critical_cycle(graph).ratio
    waits = passes_ahead == 0
    heads, tails = (_heads(graph), _tails(graph)) if waits else ([], [])
    bound = chain
    for shared in _exclusive(graph):
        work = sum(tasks[number].seconds for number in shared)
        if waits:
            work += min(heads[each] for each in shared) + min(tails[each] for each in shared)
        bound = max(bound, work)
    return bound


def _exclusive(graph: EventGraph) -> Iterator[Sequence[int]]:
    """Tasks no two of which run at the same time."""
    for group in graph.groups:
        yield group.tasks
    by_resource: dict[str, list[int]] = defaultdict(list)
    for number, task in enumerate(graph.tasks):
        if task.resource is not None:
            by_resource[task.resource].append(number)
    yield from by_resource.values()


def _heads(graph: EventGraph) -> list[float]:
    """Of each node: seconds from the start of its pass until it can start."""
    heads: list[float] = []
    for arcs in graph.arcs:
        within = [heads[source] + graph.seconds[source] for source, back in arcs if back == 0]
        heads.append(max(within, default=0.0))
    return heads


def _tails(graph: EventGraph) -> list[float]:
    """Of each node: seconds from its end until its pass can end."""
    tails = [0.0] * len(graph.arcs)
    for node in reversed(range(len(graph.arcs))):
        for source, back in graph.arcs[node]:
            if back == 0:
                tails[source] = max(tails[source], tails[node] + graph.seconds[node])
    return tails
