"""Graph: the calls of one pass of a step and what depends on what. Plain data."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from rlhf_api.calls import CallKind
from rlhf_api.plan import GraphInputs
from rlhf_flow.errors import FlowError
from rlhf_flow.step.calls import ModelCall
from rlhf_flow.step.roles import Roles

PROMPTS = "prompts"
"""The source of the fields that a step is given."""

PRETRAINING = "pretraining"
"""The source of the fields of data.pretraining."""


@dataclass(frozen=True)
class DataEdge:
    """The target reads fields that the source wrote."""

    source: str
    target: str
    fields: tuple[str, ...]


@dataclass(frozen=True)
class VersionEdge:
    """The target must run after the source because one of them changes the role's weights."""

    source: str
    target: str
    role: str
    iterations: int
    """0: in the same step; 1: the target of the next step."""


@dataclass(frozen=True)
class Region:
    """A part of a step that does not run exactly once."""

    id: str
    kind: Literal["every", "repeat"]
    expected_count: float
    """Runs of its body for one run of what encloses it: 1/n, or the expected rounds."""


@dataclass(frozen=True)
class RowCount:
    """Rows of a call for each of the step's prompts: those that it works on, or makes."""

    expected: float
    """In one run of the call, on average: for time."""
    most: int
    """Where regions repeat as often as they may: for memory."""

    def times(self, expected: float, most: int) -> RowCount:
        """So many times as many."""
        return RowCount(self.expected * expected, self.most * most)

    def plus(self, other: RowCount) -> RowCount:
        """As many as both."""
        return RowCount(self.expected + other.expected, self.most + other.most)


@dataclass(frozen=True)
class Graph:
    """The calls of a step in program order, with their dependencies."""

    roles: Roles
    """What every role is."""
    inputs: GraphInputs
    """What its calls read of the data."""
    calls: tuple[ModelCall, ...]
    """In program order."""
    data_edges: tuple[DataEdge, ...]
    """Derived from the fields."""
    version_edges: tuple[VersionEdge, ...]
    """Derived from the calls that change weights."""
    regions: tuple[Region, ...] = ()
    """Outer before inner."""
    rows: Mapping[str, RowCount] = field(default_factory=dict)
    """Of every call, by its id."""
    responses: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Of every call the generate calls whose responses it works on, by its id: its own id, where it
    generates itself; none, where it works on no responses that were sampled."""
    places: Mapping[str, str] = field(default_factory=dict, compare=False)
    """`file:line` of every call that stands in the user's own code, by its id."""

    def call(self, call_id: str) -> ModelCall:
        """The call of an id.

        Raises:
            FlowError: the step has no such call.
        """
        for call in self.calls:
            if call.id == call_id:
                return call
        raise FlowError(
            f"no such call in the graph: got {call_id}, allowed "
            f"{', '.join(call.id for call in self.calls)}; correct the id"
        )

    def told_at(self, call_id: str, text: str) -> str:
        """A text about a call, with its place in front where it stands in the user's code."""
        place = self.places.get(call_id)
        return text if place is None else f"{place}: {text}"

    def of_kind(self, *kinds: CallKind) -> tuple[ModelCall, ...]:
        """The calls of these kinds, in program order."""
        return tuple(call for call in self.calls if call.kind in kinds)

    @property
    def repeats(self) -> bool:
        """Whether something is repeated until workers say that it is enough."""
        return any(region.kind == "repeat" for region in self.regions)

    def roles_of(self, kind: CallKind) -> tuple[str, ...]:
        """The roles with a call of a kind, in the order in which the algorithm names them."""
        used = {call.role for call in self.of_kind(kind)}
        return tuple(role for role in self.roles if role in used)

    def trainings(self, role: str) -> tuple[ModelCall, ...]:
        """The calls that train a role, in program order."""
        return tuple(call for call in self.of_kind(CallKind.TRAIN) if call.role == role)

    def changes(self, role: str) -> tuple[ModelCall, ...]:
        """The calls that change a role's weights, in program order."""
        return tuple(call for call in self.calls if call.changes(role))

    def most_rows(self, role: str) -> int:
        """Rows that a role's model works on in one call, for each of the step's prompts; at least
        1."""
        kinds = (CallKind.INFER, CallKind.TRAIN)
        counts = [self.rows[call.id].most for call in self.of_kind(*kinds) if call.role == role]
        return max(counts, default=1)

    def expected_count(self, call_id: str) -> float:
        """How often a call runs in one pass of the step, on average."""
        count = 1.0
        for region in self.regions:
            if call_id.startswith(f"{region.id}/"):
                count *= region.expected_count
        return count

    def predecessors(self, call_id: str) -> frozenset[str]:
        """Calls of the same step that must end before this one starts."""
        made = (e for e in self.data_edges if e.source not in (PROMPTS, PRETRAINING))
        data = {e.source for e in made if e.target == call_id}
        versions = {
            e.source for e in self.version_edges if e.target == call_id and e.iterations == 0
        }
        return frozenset(data | versions)

    def topological_order(self) -> tuple[ModelCall, ...]:
        """The calls so that each comes after all it depends on; ties in program order.

        Raises:
            FlowError: the edges form a circle or name calls that are not there.
        """
        position = {call.id: index for index, call in enumerate(self.calls)}
        waiting = {call.id: set(self.predecessors(call.id)) for call in self.calls}
        unknown = sorted(set().union(*waiting.values()) - set(position)) if waiting else []
        if unknown:
            raise FlowError(f"an edge from a call that the graph does not have: got {unknown[0]}")
        ready = [position[call_id] for call_id, before in waiting.items() if not before]
        heapq.heapify(ready)
        ordered: list[ModelCall] = []
        while ready:
            call = self.calls[heapq.heappop(ready)]
            ordered.append(call)
            for call_id, before in waiting.items():
                if call.id in before:
                    before.remove(call.id)
                    if not before:
                        heapq.heappush(ready, position[call_id])
        if len(ordered) < len(self.calls):
            circle = ", ".join(call_id for call_id, before in waiting.items() if before)
            raise FlowError(f"calls wait for each other in a circle: got {circle}")
        return tuple(ordered)


def fields_read(source: str, edges: Iterable[DataEdge]) -> tuple[str, ...]:
    """The fields that calls read of some data, sorted.

    Args:
        source: PROMPTS or PRETRAINING.
        edges: of all calls.
    """
    return tuple(
        sorted({field for edge in edges if edge.source == source for field in edge.fields})
    )


def version_edges(calls: Sequence[ModelCall], roles: Iterable[str]) -> tuple[VersionEdge, ...]:
    """Order that a role's weights impose: readers between the calls that change them.

    Source: ReaL, section 4: a call of a model in an iteration follows its last call in the one
    before.
    """
    edges: list[VersionEdge] = []
    for role in roles:
        uses = [call for call in calls if call.uses(role)]
        if any(call.changes(role) for call in uses):
            edges += _edges_of_role(role, uses)
    return tuple(edges)


def _edges_of_role(role: str, uses: list[ModelCall]) -> list[VersionEdge]:
    # Two passes of the step in a row: edges inside the first have iterations 0, edges into the
    # second iterations 1.
    edges: list[VersionEdge] = []
    last_change: str | None = None
    readers: list[str] = []
    passes = {call.id: 0 for call in uses}
    for iteration in (0, 1):
        for call in uses:
            sources = [last_change] if last_change else []
            if call.changes(role):
                sources = readers or sources
            for source in sources:
                crosses = iteration - passes[source]
                if iteration == 0 or crosses == 1:
                    edges.append(VersionEdge(source, call.id, role, crosses))
            passes[call.id] = iteration
            if call.changes(role):
                last_change, readers = call.id, []
            else:
                readers.append(call.id)
    return edges
