"""Sends calls to groups of workers and turns what comes back into batches of references."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rlhf_api.plan import CallKind, GraphName, Mesh, Plan
from rlhf_flow.batches import BatchValue
from rlhf_flow.calls import GenerateOptions, ModelCall
from rlhf_runtime.controller.batch import Batch, Shards
from rlhf_runtime.controller.results import wait_for
from rlhf_runtime.dataplane.protocol import Coordinates, protocol_of
from rlhf_runtime.errors import UnknownCall
from rlhf_runtime.hooks import Hook, nothing
from rlhf_runtime.workers.orders import CallReport, Order, Statistics, returned_columns

Handle = Any
"""A Ray actor handle."""


@dataclass(frozen=True)
class Group:
    """All ranks of a pool, in order, or one host."""

    workers: tuple[Handle, ...]

    def submit(
        self, order: Order, batch: Batch, mesh: Mesh | None
    ) -> tuple[list[Any], Batch | None]:
        """Send a call to the ranks of its mesh; returns references to reports, and the result.

        A call that writes nothing has no result; one that reads nothing either gets no rows.
        """
        call = order.call
        names = returned_columns(call)
        sources, indexes = batch.sources(call.reads)
        if not names and not call.reads:
            indexes = []
        message = replace(order, sources=sources).message(indexes)
        reports, parts = [], []
        for rank in range(len(self.workers)) if mesh is None else mesh.ranks:
            worker = self.workers[rank]
            if not names or not _collects(call.kind, rank, mesh):
                reports.append(worker.run.remote(*message))
                continue
            count = 2 + len(names)
            report, *part = worker.run.options(num_returns=count).remote(*message)
            reports.append(report)
            parts.append(part)
        return reports, as_batch(names, parts, batch.samples * _samples(call)) if names else None


def as_batch(names: Sequence[str], parts: Sequence[Sequence[Any]], samples: int = 1) -> Batch:
    """A batch from, for every shard, references to its index and to its columns in order.

    Args:
        names: of the columns.
        parts: of the shards.
        samples: rows for each row that the step was given.
    """
    indexes = tuple(part[0] for part in parts)
    columns = {
        name: Shards(indexes, tuple(part[1 + number] for part in parts))
        for number, name in enumerate(names)
    }
    return Batch(indexes, columns, samples)


def _samples(call: ModelCall) -> int:
    """Rows of a call's result for each row that it reads."""
    return call.options.samples if isinstance(call.options, GenerateOptions) else 1


def _collects(kind: CallKind, rank: int, mesh: Mesh | None) -> bool:
    return mesh is None or protocol_of(kind).collect(Coordinates.of(rank, mesh))


@dataclass
class StepBackend:
    """Runs the calls of one step: the flow's backend. Every call returns at once."""

    plan: Plan
    groups: Mapping[str | None, Group]
    """By pool; None: the host of verifiers."""
    graph: GraphName
    step: int
    incarnation: str
    look: Hook = nothing
    """Called every few seconds while reports are waited for."""
    reports: list[Any] = field(default_factory=list)
    """References to the reports of all calls so far."""

    def run(self, call: ModelCall, batch: BatchValue) -> Batch:
        """Send a call where the plan says."""
        assert isinstance(batch, Batch)
        planned = self.plan.call(self.graph, call.id)
        if planned is None:
            raise UnknownCall(
                f"the step called {call.id}, which its plan does not have: a step must make the "
                "same calls every time; base conditions on the algorithm's settings only"
            )
        order = Order(call, self.step, self.graph, self.incarnation)
        pool = None if planned.mesh is None else planned.mesh.pool
        reports, result = self.groups[pool].submit(order, batch, planned.mesh)
        self.reports.extend(reports)
        return result if result is not None else batch.select()

    def every(self, region: str, n: int, body: Callable[[], None]) -> None:
        """Run the body on steps that are a multiple of n."""
        if self.step % n == 0:
            body()

    def repeat(
        self,
        region: str,
        body: Callable[[], BatchValue],
        until: Callable[[BatchValue], BatchValue],
        max_rounds: int,
        expected_rounds: float,
    ) -> Batch:
        """Rounds of rows are not put together yet."""
        raise UnknownCall(
            f"{region} collects rows over several rounds, which this runtime cannot do yet: sample "
            "more prompts per step instead"
        )

    def wait(self) -> list[CallReport]:
        """Every call's reports, as they come; raises the first error of any rank."""
        reports = [CallReport.read(message) for message in wait_for(self.reports, self.look)]
        self.reports.clear()
        return reports


def statistics_of(reports: Sequence[CallReport]) -> list[Statistics]:
    """The statistics of all reports."""
    return [report.statistics for report in reports]
