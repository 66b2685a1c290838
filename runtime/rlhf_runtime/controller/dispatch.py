"""Sends calls to groups of workers and turns what comes back into batches of references."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rlhf_api.plan import GraphName, Mesh, Plan
from rlhf_flow.batches import BatchValue
from rlhf_flow.calls import ComputeOptions, GenerateOptions, ModelCall
from rlhf_runtime.controller.batch import Batch, ShardRef, as_batch
from rlhf_runtime.controller.results import wait_for
from rlhf_runtime.dataplane.protocol import Coordinates, bounds_of_part, protocol_of
from rlhf_runtime.errors import UnknownCall
from rlhf_runtime.hooks import Hook, nothing
from rlhf_runtime.workers.orders import CallReport, Order, Statistics, returned_columns

Handle = Any
"""A Ray actor handle."""


class Group:
    """All ranks of a pool, in order, or one host."""

    def __init__(self, workers: Sequence[Handle]) -> None:
        self.workers = tuple(workers)
        self._running = [worker.run for worker in workers]
        self._returning = [worker.run.options(num_returns=2) for worker in workers]

    def submit(
        self, order: Order, batch: Batch, mesh: Mesh | None
    ) -> tuple[list[Any], Batch | None]:
        """Send a call to the ranks of its mesh; returns references to reports, and the result.

        Each gets references to the shards that it can need. A call that writes nothing has no
        result.
        """
        call, extent = order.call, batch.extent
        names, samples = returned_columns(call), _samples(call)
        sources, header = batch.sources(call.reads), order.header()
        everything = range(extent.num_groups)
        reports: list[Any] = []
        shards: list[ShardRef] = []
        for rank, at in _places(mesh):
            picked, references = sources.within(_rows_needed(order, at))
            message = replace(order, sources=picked).message(references, header)
            if not names or not protocol_of(call.kind).collect(at):
                reports.append(self._running[rank].remote(*message))
                continue
            report, shard = self._returning[rank].remote(*message)
            reports.append(report)
            held = bounds_of_part(call.kind, extent, at, everything)
            shards.append(ShardRef(shard, range(held.start * samples, held.stop * samples)))
        return reports, as_batch(names, shards, extent.times(samples)) if names else None


def _places(mesh: Mesh | None) -> Iterator[tuple[int, Coordinates]]:
    """The ranks of a mesh, as the pool numbers them, with their places; a host is alone."""
    if mesh is None:
        yield 0, Coordinates(data=0, data_size=1)
        return
    for rank in mesh.ranks:
        yield rank, Coordinates.of(rank, mesh)


def _rows_needed(order: Order, at: Coordinates) -> range:
    """Among which rows those are that a rank works on."""
    call, extent = order.call, order.extent
    if isinstance(call.options, ComputeOptions) and call.options.sees_all:
        return range(extent.num_rows)
    batches = extent.mini_batches(order.groups_per_batch)
    whole = call.compares_responses
    bounds = [bounds_of_part(call.kind, extent, at, groups, whole) for groups in batches]
    bounds = [each for each in bounds if each] or [range(0)]
    return range(min(each.start for each in bounds), max(each.stop for each in bounds))


def _samples(call: ModelCall) -> int:
    """Rows of a call's result for each row that it reads."""
    return call.options.samples if isinstance(call.options, GenerateOptions) else 1


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
        order = Order(
            call,
            self.step,
            self.graph,
            self.incarnation,
            batch.extent,
            planned.mini_batch_prompts,
        )
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
