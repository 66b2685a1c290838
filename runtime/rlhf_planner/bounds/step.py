"""How long a step takes at least, from what its calls take at least, in the order in which the
driver sends them. Pure."""

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
from rlhf_planner.memory.generation import EngineChoice
from rlhf_planner.memory.offloading import with_offloading
from rlhf_planner.placement.transitions import with_transitions
from rlhf_planner.plan_calls import CallMeshes
from rlhf_planner.problem.problem import PlanningProblem
from rlhf_planner.simulation.event_graph import PoolRanks, Task
from rlhf_planner.simulation.simulate import step_seconds
from rlhf_planner.simulation.step_tasks import passes_ahead, previous_calls
from rlhf_planner.strategies.placements import Placement

Seconds = Mapping[str, float]
"""Of calls, by their sites."""

BESIDE_RANKS = (CallKind.SCORE, CallKind.SAVE)
"""Calls that no rank runs."""


class _Ordered(NamedTuple):
    """A call of the step, in its order."""

    call: ModelCall
    expected_count: float
    """How often it runs, on average."""
    after: tuple[str, ...]
    """What it waits for in its own step."""
    after_previous: tuple[str, ...]
    """And in the one before."""


Order = tuple[_Ordered, ...]
"""Calls of a step."""


@dataclass(frozen=True, eq=False)
class LeastSteps:
    """Bounds for steps of one problem."""

    problem: PlanningProblem
    """What is planned."""

    @property
    def graph(self) -> Graph:
        """The step's."""
        return self.problem.graphs[GraphName.STEP]

    def of_step(
        self, placement: Placement, seconds: Seconds, orders: Sequence[Order] = ()
    ) -> float:
        """A step in the long run.

        Args:
            placement: where roles are.
            seconds: of its calls, and by `move_of` of its transitions. Of these those that are left
                out take their orders, other calls no time.
            orders: those that its calls may have, with all transitions; that counts in which a step
                takes least. None: with the reshards that all plans have.
        """
        return min(
            step_seconds(self._tasks(placement, order, seconds), passes_ahead(self.graph))
            for order in orders or (self._order,)
        )

    def of_chain(self, seconds: Seconds) -> float:
        """A step in the long run if no call waited for the devices of another; argument as
        above."""
        return step_seconds(self._tasks(None, self._order, seconds), passes_ahead(self.graph))

    def orders(self, placement: Placement, offloaded: Collection[str]) -> tuple[Order, ...]:
        """The calls of a step with all transitions, for each set of roles whose engines may give
        their memory back.

        Args:
            placement: where roles are.
            offloaded: roles that leave their devices.
        """
        training = {role: place.training.mesh for role, place in placement.items()}
        engines = {
            role: EngineChoice(role, placement[role].generation.mesh, 0, release=False)
            for role, facts in self.problem.models.items()
            if facts.generates
        }
        meshes = CallMeshes(training, engines, self.problem.policy)
        sets = chain(*(combinations(engines, count) for count in range(len(engines) + 1)))
        found = []
        for releases in sets:
            calls = with_transitions(self.graph.calls, releases, meshes.share_ranks)
            found.append(self._ordered(with_offloading(calls, offloaded, meshes.needs_ranks_of)))
        return tuple(found)

    def _tasks(
        self, placement: Placement | None, order: Order, seconds: Seconds
    ) -> tuple[Task, ...]:
        """None: as if every call had devices of its own."""
        return tuple(
            Task(
                id=each.call.id,
                seconds=_seconds(each.call, seconds) * each.expected_count,
                ranks=() if placement is None else self.ranks(placement, each.call),
                after=each.after,
                after_previous=each.after_previous,
            )
            for each in order
        )

    @cached_property
    def _order(self) -> Order:
        """Every call of the step and every reshard that all plans have: those of engines that never
        give their weights back."""
        return self._ordered(with_transitions(self.graph.calls, (), lambda one, other: True))

    def _ordered(self, calls: Sequence[ModelCall]) -> Order:
        graph, previous = self.graph, previous_calls(self.graph)
        return tuple(
            _Ordered(
                call,
                graph.expected_count(call.id),
                tuple(sorted(graph.predecessors(call.id))),
                previous.get(call.id, ()),
            )
            for call in calls
        )

    def ranks(self, placement: Placement, call: ModelCall) -> tuple[PoolRanks, ...]:
        """Those of a call, as `CallMeshes.of` has them."""
        if call.kind in BESIDE_RANKS:
            return ()
        place = placement[call.role or self.problem.policy]
        training, generation = place.training.mesh, place.generation.mesh
        meshes = {
            CallKind.GENERATE: (generation,),
            CallKind.RELEASE: (generation,),
            CallKind.RESHARD: (generation, training),
        }.get(call.kind, (training,))
        return tuple(dict.fromkeys(PoolRanks(mesh.pool, mesh.ranks) for mesh in meshes))


def _seconds(call: ModelCall, seconds: Seconds) -> float:
    if call.kind in TRANSITIONS:
        return seconds.get(move_of(call), DISPATCH_SECONDS)
    return seconds.get(call.id, 0.0)


def move_of(call: ModelCall) -> str:
    """By what its seconds are found: all transitions of a role and kind take as long."""
    return f"{call.role}.{call.kind}"
