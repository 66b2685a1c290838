"""Graph: the calls of one pass of a step, and their dependencies. Plain data."""

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

# Source of the columns of a step's prompts.
PROMPTS = "prompts"

# Source of the columns of data.pretraining.
PRETRAINING = "pretraining"


@dataclass(frozen=True)
class DataEdge:
    """The target reads columns that the source wrote."""

    source: str
    target: str
    columns: tuple[str, ...]


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
    """Runs of its body per run of the enclosing region: 1/n, or the expected rounds."""


@dataclass(frozen=True)
class RowCount:
    """Rows that a call processes or writes, per prompt of the step."""

    expected: float
    """Mean over runs of the call; estimates of time use it."""
    maximum: int
    """Number at the round limit of every region; decides on memory."""

    def times(self, expected: float, maximum: int) -> RowCount:
        """Multiply both numbers."""
        return RowCount(self.expected * expected, self.maximum * maximum)

    def plus(self, other: RowCount) -> RowCount:
        """Add both numbers."""
        return RowCount(self.expected + other.expected, self.maximum + other.maximum)


@dataclass(frozen=True)
class Graph:
    """The calls of a step in program order, with their dependencies."""

    roles: Roles
    inputs: GraphInputs
    """Columns of the data that the calls read."""
    calls: tuple[ModelCall, ...]
    """In program order."""
    data_edges: tuple[DataEdge, ...]
    """Dependencies through columns."""
    version_edges: tuple[VersionEdge, ...]
    """Dependencies through calls that change weights."""
    regions: tuple[Region, ...] = ()
    """Outer before inner."""
    rows: Mapping[str, RowCount] = field(default_factory=dict)
    """Rows of every call, by its id."""
    responses: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Per call id, the generate calls whose responses the call reads: its own id for a generate
    call, none if it reads no sampled responses."""
    locations: Mapping[str, str] = field(default_factory=dict, compare=False)
    """`file:line` of every call in the user's code, by its id."""

    def call(self, call_id: str) -> ModelCall:
        """The call with an id.

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

    def prefix_location(self, call_id: str, text: str) -> str:
        """Prefix a text with the location of a call, if it is in the user's code."""
        location = self.locations.get(call_id)
        return text if location is None else f"{location}: {text}"

    def calls_of_kind(self, *kinds: CallKind) -> tuple[ModelCall, ...]:
        """The calls of these kinds, in program order."""
        return tuple(call for call in self.calls if call.kind in kinds)

    @property
    def repeats(self) -> bool:
        """True if the step has a `flow.repeat`."""
        return any(region.kind == "repeat" for region in self.regions)

    @property
    def calls_on_data(self) -> frozenset[str]:
        """Ids of the calls that read no sampled responses."""
        return frozenset(call.id for call in self.calls if not self.responses.get(call.id))

    def scores_of_responses(self, generate: ModelCall) -> tuple[ModelCall, ...]:
        """The calls that score responses of a call, run as often as it, and read nothing else."""
        region = generate.id.rpartition("/")[0]
        return tuple(
            call
            for call in self.calls_of_kind(CallKind.SCORE)
            if call.id.rpartition("/")[0] == region
            and {edge.source for edge in self.data_edges if edge.target == call.id} == {generate.id}
        )

    def roles_with(self, kind: CallKind) -> tuple[str, ...]:
        """The roles with a call of a kind, in the order in which the algorithm names them."""
        used = {call.role for call in self.calls_of_kind(kind)}
        return tuple(role for role in self.roles if role in used)

    def trainings(self, role: str) -> tuple[ModelCall, ...]:
        """The calls that train a role, in program order."""
        return tuple(call for call in self.calls_of_kind(CallKind.TRAIN) if call.role == role)

    def changes(self, role: str) -> tuple[ModelCall, ...]:
        """The calls that change a role's weights, in program order."""
        return tuple(call for call in self.calls if call.changes(role))

    def max_rows(self, role: str) -> int:
        """Maximum rows of a role's model in one call, per prompt of the step; at least 1."""
        kinds = (CallKind.INFER, CallKind.TRAIN)
        counts = [
            self.rows[call.id].maximum for call in self.calls_of_kind(*kinds) if call.role == role
        ]
        return max(counts, default=1)

    def expected_count(self, call_id: str) -> float:
        """Average number of runs of a call in one pass of the step."""
        # The ids of all enclosing regions are prefixes of the call's.
        count = 1.0
        for region in self.regions:
            if call_id.startswith(f"{region.id}/"):
                count *= region.expected_count
        return count

    def predecessors(self, call_id: str) -> frozenset[str]:
        """Calls of the same step that must end before this one starts."""
        written = (e for e in self.data_edges if e.source not in (PROMPTS, PRETRAINING))
        data = {e.source for e in written if e.target == call_id}
        versions = {
            e.source for e in self.version_edges if e.target == call_id and e.iterations == 0
        }
        return frozenset(data | versions)

    def topological_order(self) -> tuple[ModelCall, ...]:
        """The calls, each after all its dependencies; ties in program order.

        Raises:
            FlowError: the edges form a cycle or name missing calls.
        """
        position = {call.id: index for index, call in enumerate(self.calls)}
        waiting = {call.id: set(self.predecessors(call.id)) for call in self.calls}
        unknown = sorted(set().union(*waiting.values()) - set(position)) if waiting else []
        if unknown:
            raise FlowError(f"an edge from a call that the graph does not have: got {unknown[0]}")
        # A heap of positions breaks ties in program order, so that plans are reproducible.
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
        # Only a manifest's graph can have a circle: a trace reads what is written before.
        if len(ordered) < len(self.calls):
            circle = ", ".join(call_id for call_id, before in waiting.items() if before)
            raise FlowError(f"calls wait for each other in a circle: got {circle}")
        return tuple(ordered)


def columns_read(source: str, edges: Iterable[DataEdge]) -> tuple[str, ...]:
    """The columns that calls read of some data, sorted.

    Args:
        source: PROMPTS or PRETRAINING.
        edges: of all calls.
    """
    return tuple(
        sorted({column for edge in edges if edge.source == source for column in edge.columns})
    )


def version_edges(calls: Sequence[ModelCall], roles: Iterable[str]) -> tuple[VersionEdge, ...]:
    """Dependencies through weights: every change of a role follows and precedes its readers.

    Source: ReaL, section 4: a call of a model in an iteration follows its last call in the one
    before.
    """
    edges: list[VersionEdge] = []
    for role in roles:
        uses = [call for call in calls if call.uses(role)]
        # Calls of a frozen role may run in any order.
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
            # A change waits for all readers of the old weights, which wait for the change before.
            if call.changes(role):
                sources = readers or sources
            for source in sources:
                crosses = iteration - passes[source]
                # Edges inside the second pass repeat those inside the first.
                if iteration == 0 or crosses == 1:
                    edges.append(VersionEdge(source, call.id, role, crosses))
            passes[call.id] = iteration
            if call.changes(role):
                last_change, readers = call.id, []
            else:
                readers.append(call.id)
    return edges
