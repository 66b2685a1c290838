"""Sends calls to groups of workers and turns what comes back into batches of references."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import cycle
from typing import Any, Protocol

from rlhf_api.calls import CallKind
from rlhf_api.plan import CallPlan, GraphName, Mesh, Plan, ranks_of_both
from rlhf_flow.batches import BatchValue
from rlhf_flow.calls import ComputeOptions, GenerateOptions, ModelCall
from rlhf_flow.fields import ENOUGH
from rlhf_runtime.controller.batch import Batch, ShardRef, Sources, as_batch
from rlhf_runtime.controller.nodes import Node
from rlhf_runtime.controller.results import wait_for
from rlhf_runtime.controller.saved_lines import Save
from rlhf_runtime.controller.scored import require_scores
from rlhf_runtime.dataplane.calls import bounds_of_part, protocol_of
from rlhf_runtime.dataplane.partition import Extent, Share
from rlhf_runtime.dataplane.protocol import Coordinates
from rlhf_runtime.errors import UnknownCall
from rlhf_runtime.hooks import Hook, nothing
from rlhf_runtime.workers.orders import (
    CallReport,
    Order,
    OrderedBatch,
    Source,
    returned_columns,
)

Handle = Any
"""A Ray actor handle."""


class StepData(Protocol):
    """Where the rows of a step come from: each is a reference to a report, and the rows."""

    def prompts(self, number: int) -> tuple[Any, Batch]:
        """A batch of prompts; those of other numbers are others."""

    def pretraining(self) -> tuple[Any, Batch]:
        """Rows of data.pretraining."""


Sending = tuple[int, Coordinates, Order]
"""A worker's number in its group, its place, and what it is to do."""


class WorkerGroup:
    """All ranks of a pool, in order."""

    def __init__(self, workers: Sequence[Handle], nodes: Sequence[Node] = ()) -> None:
        """nodes: of the workers, where they are known."""
        self.workers = tuple(workers)
        self.nodes = tuple(nodes) or (None,) * len(self.workers)
        self._running = [worker.run for worker in workers]
        self._returning = [worker.run.options(num_returns=2) for worker in workers]

    def submit(
        self,
        order: Order,
        batches: Sequence[Batch],
        mesh: Mesh | None,
        source: Mesh | None = None,
    ) -> tuple[list[Any], Batch | None]:
        """Send a call to the workers that run it; returns references to reports, and the result.

        Each gets references to the shards that it can need. A call that writes nothing has no
        result.

        Args:
            order: the call.
            batches: those that it reads.
            mesh: its ranks; None for hosts.
            source: the ranks that it brings weights from, where it does; they run it, too.
        """
        call, extent = order.call, batches[0].extent
        names, samples = returned_columns(call), _samples(call)
        reads = zip(batches, (call.reads, *call.auxiliary_reads), strict=True)
        read = [(batch.extent, batch.sources(fields)) for batch, fields in reads]
        header = order.header()
        everything = range(extent.num_groups)
        reports: list[Any] = []
        shards: list[ShardRef] = []
        for worker, at, own in self._sendings(order, batches[0], mesh, source):
            picked, references = _pick(order, read, at)
            message = own.message(references, header, picked)
            if not names or not protocol_of(call).collect(at):
                reports.append(self._running[worker].remote(*message))
                continue
            report, shard = self._returning[worker].remote(*message)
            reports.append(report)
            held = bounds_of_part(call, extent, at, everything)
            rows = range(held.start * samples, held.stop * samples)
            shards.append(ShardRef(shard, rows, self.nodes[worker]))
        shards.sort(key=lambda shard: shard.rows.start)  # a protocol need not give them in order
        return reports, as_batch(names, shards, extent.times(samples)) if names else None

    def _sendings(
        self, order: Order, batch: Batch, mesh: Mesh | None, source: Mesh | None
    ) -> Iterator[Sending]:
        """To every rank of the call's meshes."""
        assert mesh is not None
        for rank in mesh.ranks if source is None else ranks_of_both(mesh, source):
            yield rank, Coordinates.in_call(rank, mesh, source), order


class HostGroup(WorkerGroup):
    """Hosts beside the ranks, which are sent a call in as many parts as its rows come in: they
    begin with those that are there."""

    def __init__(self, workers: Sequence[Handle], nodes: Sequence[Node] = ()) -> None:
        super().__init__(workers, nodes)
        self._turns = cycle(range(len(self.workers)))

    def _sendings(
        self, order: Order, batch: Batch, mesh: Mesh | None, source: Mesh | None
    ) -> Iterator[Sending]:
        """Parts are those of the read column that comes in most, as by a mesh with a data axis of
        as many ranks: whoever generated cut whole groups by the same rule. Each goes to the host on
        the node where it was made; where none is, hosts take turns."""
        pieces = max((batch.pieces(field) for field in order.call.reads), key=len)
        nodes = [piece.node for piece in pieces] or [None]
        for number, node in enumerate(nodes):
            known = node is not None and node in self.nodes
            host = self.nodes.index(node) if known else next(self._turns)
            share = Share(number, len(nodes))
            yield host, Coordinates(share.number, share.count), replace(order, share=share)


def _pick(
    order: Order, read: Sequence[tuple[Extent, Sources]], at: Coordinates
) -> tuple[list[Sequence[Source]], list[Any]]:
    """What a rank is told of each batch that the call reads, and references to its shards."""
    told: list[Sequence[Source]] = []
    references: list[Any] = []
    for extent, sources in read:
        picked, found = sources.within(_rows_needed(order, extent, at))
        told.append(picked)
        references += found
    return told, references


def _rows_needed(order: Order, extent: Extent, at: Coordinates) -> range:
    """Among which rows of a batch those are that a rank works on."""
    call = order.call
    if isinstance(call.options, ComputeOptions) and call.options.sees_all:
        return range(extent.num_rows)
    batches = extent.mini_batches(order.mini_batches)
    bounds = [bounds_of_part(call, extent, at, groups) for groups in batches]
    bounds = [each for each in bounds if each] or [range(0)]
    return range(min(each.start for each in bounds), max(each.stop for each in bounds))


def _samples(call: ModelCall) -> int:
    """Rows of a call's result for each row that it reads."""
    return call.options.samples if isinstance(call.options, GenerateOptions) else 1


@dataclass
class StepBackend:
    """Runs the calls of one step: the flow's backend. Every call returns at once."""

    plan: Plan
    worker_groups: Mapping[str | None, WorkerGroup]
    """By pool; None: the hosts of verifiers."""
    data: StepData
    graph: GraphName
    step: int
    incarnation: str
    look: Hook = nothing
    """Called every few seconds while workers are waited for."""
    reports: list[Any] = field(default_factory=list)
    """References to the reports of all calls so far."""
    saves: list[Save] = field(default_factory=list)
    """The calls so far that save lines."""
    rounds: dict[str, int] = field(default_factory=dict)
    """How many each `flow.repeat` took."""
    _num_checked: int = 0
    """Reports of which is known that their calls have scores."""
    _changes: Counter[str | None] = field(default_factory=Counter)
    """Calls so far that change the weights of each role."""
    _round: int = 0
    """The one whose calls are sent."""
    _prompts: list[Batch] = field(default_factory=list)
    """Those that were asked for, one batch after the other."""
    _pretraining: Batch | None = None

    @property
    def prompts(self) -> Batch:
        """The step's prompts: what its function is given."""
        return self._prompts[0] if self._prompts else self._fresh_prompts()

    def no_rows(self) -> Batch:
        """A batch of no rows and no fields."""
        return as_batch((), [], Extent(0))

    def pretraining(self) -> Batch:
        """The step's rows of data.pretraining."""
        if self._pretraining is None:
            self._pretraining = self._received(self.data.pretraining())
        return self._pretraining

    def run(
        self, call: ModelCall, batch: BatchValue, auxiliary: Sequence[BatchValue] = ()
    ) -> Batch:
        """Send a call where the plan says, with what the plan has beside it."""
        before, after = self._transitions(call)
        for planned in before:
            self._send_transition(planned)
        result = self._send(call, batch, auxiliary)
        for planned in after:
            self._send_transition(planned)
        return result

    def _transitions(self, call: ModelCall) -> tuple[Sequence[CallPlan], Sequence[CallPlan]]:
        if self.plan.call(self.graph, call.id) is None:
            return (), ()
        return self.plan.transitions(self.graph, call.id)

    def _send_transition(self, planned: CallPlan) -> None:
        call = ModelCall(planned.call, planned.role, planned.method, planned.kind, (), ())
        self._send(call, self.no_rows(), ())

    def _send(self, call: ModelCall, batch: BatchValue, auxiliary: Sequence[BatchValue]) -> Batch:
        batches = [each for each in (batch, *auxiliary) if isinstance(each, Batch)]
        planned = self.plan.call(self.graph, call.id)
        if planned is None:
            raise UnknownCall(
                f"the step called {call.id}, which its plan does not have: a step must make the "
                "same calls every time; base conditions on the algorithm's settings only"
            )
        order = Order(
            call,
            self.step,
            self.graph,
            self.incarnation,
            tuple(OrderedBatch(each.extent) for each in batches),
            planned.mini_batches,
            self._round,
            self._changes[call.role],
        )
        if call.role is not None and call.changes(call.role):
            self._changes[call.role] += 1
        if call.kind is CallKind.SAVE:
            self.saves.append(Save(order, batches[0]))
            return batches[0].select()
        pool = None if planned.mesh is None else planned.mesh.pool
        group = self.worker_groups[pool]
        reports, result = group.submit(order, batches, planned.mesh, planned.source_mesh)
        self.reports.extend(reports)
        return result if result is not None else batches[0].select()

    def every(self, region: str, n: int, body: Callable[[], None]) -> None:
        """Run the body on steps that are a multiple of n."""
        if self.step % n == 0:
            body()

    def repeat(
        self,
        region: str,
        body: Callable[[BatchValue], BatchValue],
        until: Callable[[BatchValue], BatchValue],
        max_rounds: int,
        expected_rounds: float,
    ) -> Batch:
        """Run the body until its rows suffice: the one call of a step that waits for workers."""
        rows: Batch | None = None
        for number in range(max_rounds):
            self._round = number
            made = body(self.prompts if number == 0 else self._fresh_prompts())
            assert isinstance(made, Batch)
            rows = made if rows is None else rows.concat(made)
            self.rounds[region] = number + 1
            if number + 1 < max_rounds and self._says_enough(until(rows)):
                break
        self._round = 0
        assert rows is not None
        return rows

    def _fresh_prompts(self) -> Batch:
        """Prompts that the step was not given yet."""
        self._prompts.append(self._received(self.data.prompts(len(self._prompts))))
        return self._prompts[-1]

    def _says_enough(self, answer: BatchValue) -> bool:
        """Wait for a condition's answer, which is the same in all rows."""
        assert isinstance(answer, Batch)
        column = answer.columns[ENOUGH]
        shard = next(each for each in column.held[0].shards if each.rows)
        *messages, found = wait_for([*self.reports, shard.reference], self.look)
        fresh = messages[self._num_checked :]
        require_scores([CallReport.read(message) for message in fresh], self.step)
        self._num_checked = len(messages)
        return bool(found.columns[column.names[0]].values.all())

    def _received(self, sent: tuple[Any, Batch]) -> Batch:
        report, batch = sent
        self.reports.append(report)
        return batch

    def wait(self) -> list[CallReport]:
        """Every call's reports, as they come; raises the first error of any worker.

        Raises:
            NothingScored: no response of a call could be scored.
        """
        reports = [CallReport.read(message) for message in wait_for(self.reports, self.look)]
        self.reports.clear()
        self._num_checked = 0
        require_scores(reports, self.step)
        return reports
