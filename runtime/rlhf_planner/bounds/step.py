"""Lower bounds of a step, from lower bounds of its calls in the driver's order. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, combinations
from typing import NamedTuple

from rlhf_api.calls import TRANSITIONS, CallKind
from rlhf_api.plan import GraphName
from rlhf_flow.step.calls import ModelCall
from rlhf_flow.trace.graph import Graph
from rlhf_planner.cost.transfers import DISPATCH_SECONDS
from rlhf_planner.memory.offloading import with_offloading
from rlhf_planner.placement.strategy import JobStrategy
from rlhf_planner.placement.transitions import with_transitions
from rlhf_planner.plan_calls import CallMeshes
from rlhf_planner.problem.problem import PlanningProblem
from rlhf_planner.simulation.event_graph import (
    EventGraph,
    PoolRanks,
    Task,
    critical_ratio,
    event_graph,
)
from rlhf_planner.simulation.step_tasks import passes_ahead, previous_calls

# Seconds of calls, by their sites.
Seconds = Mapping[str, float]

# Calls that no rank runs.
OFF_RANKS = (CallKind.SCORE, CallKind.SAVE)


class _OrderedCall(NamedTuple):
    """A call of a step, in the driver's order."""

    call: ModelCall
    # Key of its seconds, and its seconds without an entry.
    key: str
    otherwise: float
    # Mean number of runs per step.
    expected_count: float
    # Calls of the same step that it waits for.
    after: tuple[str, ...]
    # Calls of the step before that it waits for.
    after_previous: tuple[str, ...]


class Order(NamedTuple):
    """Calls of a step, in the driver's order on some devices."""

    calls: tuple[_OrderedCall, ...]
    # Alike for all durations; its own are 0.
    graph: EventGraph


@dataclass(frozen=True, eq=False)
class StepTimeBounds:
    """Lower bounds of steps of one problem."""

    problem: PlanningProblem

    @property
    def graph(self) -> Graph:
        """The graph of the step."""
        return self.problem.graphs[GraphName.STEP]

    def step_seconds(
        self, placement: JobStrategy, seconds: Seconds, orders: Sequence[Order] = ()
    ) -> float:
        """Bound a step in the long run.

        Args:
            placement: the devices of each role.
            seconds: of calls by site, and of transitions by `move_of`. A transition without an
                entry takes its dispatch; any other call without one takes no time.
            orders: possible orders with all transitions; the fastest one counts. Empty: the order
                with only those reshards that every plan has.
        """
        # The plan may have any of these orders, so only the fastest one is a bound.
        return min(
            _simulated_seconds(order, seconds)
            for order in orders or (self._with_arcs(self._order, placement),)
        )

    def critical_path(self, seconds: Seconds) -> float:
        """Bound a step in the long run as if no call waited for another's devices."""
        return _simulated_seconds(self._without_ranks, seconds)

    def orders(self, placement: JobStrategy, offloaded: Collection[str]) -> tuple[Order, ...]:
        """The calls of a step with all transitions, one order per set of roles that may release
        their engines' memory.

        Args:
            placement: the devices of each role.
            offloaded: roles that leave their devices.
        """
        meshes = CallMeshes(placement, self.problem.policy)
        # Which engines release their memory is decided per plan: every set is possible.
        engines = placement.engines
        sets = chain(*(combinations(engines, count) for count in range(len(engines) + 1)))
        orders = []
        for releases in sets:
            calls = with_transitions(self.graph.calls, releases, meshes.share_ranks)
            ordered = self._ordered(with_offloading(calls, offloaded, meshes.needs_ranks_of))
            orders.append(self._with_arcs(ordered, placement))
        return tuple(orders)

    def _with_arcs(self, calls: tuple[_OrderedCall, ...], placement: JobStrategy | None) -> Order:
        """An order of calls on a placement. None: as if every call had devices of its own."""
        meshes = None if placement is None else CallMeshes(placement, self.problem.policy)
        tasks = [
            Task(
                id=ordered.call.id,
                seconds=0.0,
                ranks=() if meshes is None else _ranks(meshes, ordered.call),
                after=ordered.after,
                after_previous=ordered.after_previous,
            )
            for ordered in calls
        ]
        return Order(calls, event_graph(tasks, passes_ahead(self.graph)))

    @cached_property
    def _without_ranks(self) -> Order:
        return self._with_arcs(self._order, None)

    @cached_property
    def _order(self) -> tuple[_OrderedCall, ...]:
        """The calls of a step and the reshards that every plan has."""
        # Engines that never release their weights need the fewest reshards, so every plan has
        # these.
        return self._ordered(with_transitions(self.graph.calls, (), lambda one, other: True))

    def _ordered(self, calls: Sequence[ModelCall]) -> tuple[_OrderedCall, ...]:
        graph, previous = self.graph, previous_calls(self.graph)
        return tuple(
            _OrderedCall(
                call,
                move_of(call) if call.kind in TRANSITIONS else call.id,
                DISPATCH_SECONDS if call.kind in TRANSITIONS else 0.0,
                graph.expected_count(call.id),
                tuple(sorted(graph.predecessors(call.id))),
                previous.get(call.id, ()),
            )
            for call in calls
        )

    def ranks(self, placement: JobStrategy, call: ModelCall) -> tuple[PoolRanks, ...]:
        """The ranks of a call; none if no rank runs it."""
        return _ranks(CallMeshes(placement, self.problem.policy), call)


def _simulated_seconds(order: Order, seconds: Seconds) -> float:
    # In the long run a call that only some steps run costs its mean. The end of a pass takes no
    # time.
    durations = [
        seconds.get(ordered.key, ordered.otherwise) * ordered.expected_count
        for ordered in order.calls
    ]
    return critical_ratio(order.graph, [*durations, 0.0])


def _ranks(meshes: CallMeshes, call: ModelCall) -> tuple[PoolRanks, ...]:
    target, source = meshes.of(call), meshes.source_of(call)
    if target is None:
        return ()
    ranks = PoolRanks(target.pool, target.ranks)
    if source is None or (source.pool, source.ranks) == ranks:
        return (ranks,)
    return ranks, PoolRanks(source.pool, source.ranks)


def move_of(call: ModelCall) -> str:
    """Key of a transition's seconds: all transitions of a role and kind take as long."""
    return f"{call.role}.{call.kind}"
