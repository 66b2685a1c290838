"""Sends the calls of a step to the workers of their plan."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from rlhf_api.calls import CallKind
from rlhf_api.plan import CallPlan, GraphName, Plan
from rlhf_flow.step.batch import BatchValue
from rlhf_flow.step.calls import ModelCall, SaveOptions
from rlhf_flow.step.columns import ENOUGH
from rlhf_runtime.calls.ended_rows import ScoreCall
from rlhf_runtime.calls.reports import CallReport
from rlhf_runtime.calls.requests import CallRequest, InputBatch, returned_columns
from rlhf_runtime.controller.batch import Batch, LateShards, as_batch
from rlhf_runtime.controller.response_samples import ResponseColumns
from rlhf_runtime.controller.results import wait_for
from rlhf_runtime.controller.saved_lines import SaveCall
from rlhf_runtime.controller.scoring import require_scores
from rlhf_runtime.controller.worker_groups import SubmittedCall, WorkerGroup
from rlhf_runtime.dataplane.partition import BatchShape, RowSubset
from rlhf_runtime.errors import UnknownCall
from rlhf_runtime.hooks import Hook, noop


class StepData(Protocol):
    """Rows of a step: every method returns a reference to a report, and the rows."""

    def prompts(self, number: int) -> tuple[Any, Batch]:
        """Return a batch of prompts, one per number."""

    def pretraining(self) -> tuple[Any, Batch]:
        """Return the rows of data.pretraining."""


@dataclass
class StepBackend:
    """Runs the calls of one step: the flow's backend. Calls are sent without waiting."""

    plan: Plan
    worker_groups: Mapping[str | None, WorkerGroup]
    """By pool; None: the reward hosts."""
    data: StepData
    graph: GraphName
    step: int
    incarnation: str
    calls_on_data: frozenset[str] = frozenset()
    """Ids of the calls that read no sampled responses."""
    repetition: int = 0
    """Earlier passes of this graph and step."""
    poll: Hook = noop
    """Called every few seconds while the driver waits for workers."""
    reports: list[Any] = field(default_factory=list)
    """References to the reports of all calls so far."""
    saves: list[SaveCall] = field(default_factory=list)
    """Calls so far that save lines."""
    responses: ResponseColumns | None = None
    """Collects the columns of responses. None: the pass has no samples."""
    rounds: dict[str, int] = field(default_factory=dict)
    """Number of rounds by `flow.repeat`."""
    score_calls: Mapping[str, tuple[ScoreCall, ...]] = field(default_factory=dict)
    """Calls that score the responses of a call and read nothing else, by the call's id."""
    # Number of reports whose scores are checked.
    _num_checked: int = 0
    # Calls so far that change the weights of each role.
    _weight_changes: Counter[str | None] = field(default_factory=Counter)
    # Current round of `flow.repeat`.
    _round: int = 0
    # Batches of prompts so far.
    _prompts: list[Batch] = field(default_factory=list)
    _pretraining: Batch | None = None
    # Functions that send the second parts of calls which began early.
    _deferred_sends: list[Callable[[], None]] = field(default_factory=list)

    @property
    def prompts(self) -> Batch:
        """The step's prompts."""
        return self._prompts[0] if self._prompts else self._fresh_prompts()

    def no_rows(self) -> Batch:
        """Return a batch without rows and columns."""
        return as_batch((), [], BatchShape(0))

    def pretraining(self) -> Batch:
        """Return the step's rows of data.pretraining."""
        if self._pretraining is None:
            self._pretraining = self._record_report(self.data.pretraining())
        return self._pretraining

    def run(
        self, call: ModelCall, batch: BatchValue, auxiliary: Sequence[BatchValue] = ()
    ) -> Batch:
        """Send a call, with the weight transfers and offloading that its plan has before and after
        it."""
        batches = [value for value in (batch, *auxiliary) if isinstance(value, Batch)]
        result = self._run(call, batches)
        if self.responses is not None:
            self.responses.record(call, batches[0], result)
        return result

    def _run(self, call: ModelCall, batches: Sequence[Batch]) -> Batch:
        if self._begins_early(call):
            return self._send_in_two_parts(call, batches[0])
        self.send_deferred()
        before, after = self._transitions(call)
        for planned in before:
            self._send_transition(planned)
        if after and after[0].kind is CallKind.FINISH:
            result = self._generate_in_two_parts(call, batches[0], after[0])
            after = after[1:]
        else:
            result = self._send(call, batches)
        for planned in after:
            self._send_transition(planned)
        return result

    def send_deferred(self) -> None:
        """Send the second parts of calls that began early."""
        for send in self._deferred_sends:
            send()
        self._deferred_sends.clear()

    def _begins_early(self, call: ModelCall) -> bool:
        """True if the call begins before all responses have ended."""
        if self.graph is not GraphName.STEP:
            return False
        fusions = [
            generation.fusion
            for generation in self.plan.generations
            if generation.fusion is not None
        ]
        return any(call.id in fusion.calls for fusion in fusions)

    def _generate_in_two_parts(self, call: ModelCall, batch: Batch, finish: CallPlan) -> Batch:
        """Send a call that leaves the last responses to few engines, and the call that finishes
        them."""
        mesh = self._planned(call).mesh
        assert mesh is not None and finish.mesh is not None
        sent = self._submit(call, [batch], RowSubset.FINISHED)
        engines = sorted(mesh.rank_at(number, 0, 0) for number in range(mesh.data))
        moved = [
            shard
            for rank, shard in zip(engines, sent.unfinished, strict=True)
            if rank not in finish.mesh.ranks
        ]
        columns = returned_columns(call)
        rest = ModelCall(finish.call, finish.role, finish.method, finish.kind, columns, columns)
        finished = sent.rows
        # If nothing moves, an empty shard tells the types of the columns.
        unfinished = as_batch(columns, moved or sent.unfinished[:1], finished.shape)
        completed = self._submit(rest, [unfinished], RowSubset.UNFINISHED, call.id).rows
        return as_batch(columns, (*finished.shards, *completed.shards), finished.shape)

    def _send_in_two_parts(self, call: ModelCall, batch: Batch) -> Batch:
        """Send a call over the rows that have ended; defer the call over the others."""
        # Callers get the batch now; its late shards are filled in by `send_rest`.
        late = LateShards()

        def send_rest() -> None:
            rest = self._submit(
                call, [batch.with_subset(RowSubset.UNFINISHED)], RowSubset.UNFINISHED
            )
            late.shards = rest.rows.shards

        finished = self._submit(
            call, [batch.with_subset(RowSubset.FINISHED)], RowSubset.FINISHED
        ).rows
        self._deferred_sends.append(send_rest)
        return as_batch(returned_columns(call), finished.shards, batch.shape, late)

    def _transitions(self, call: ModelCall) -> tuple[Sequence[CallPlan], Sequence[CallPlan]]:
        if self.plan.call(self.graph, call.id) is None:
            return (), ()
        return self.plan.transitions(self.graph, call.id)

    def _send_transition(self, planned: CallPlan) -> None:
        call = ModelCall(planned.call, planned.role, planned.method, planned.kind, (), ())
        self._send(call, [self.no_rows()])

    def _send(self, call: ModelCall, batches: Sequence[Batch]) -> Batch:
        result = self._submit(call, batches).result
        return batches[0].select() if result is None else result

    def _planned(self, call: ModelCall) -> CallPlan:
        planned = self.plan.call(self.graph, call.id)
        if planned is None:
            raise UnknownCall(
                f"the step called {call.id}, which its plan does not have: a step must make the "
                "same calls every time; base conditions on the algorithm's settings only"
            )
        return planned

    def _submit(
        self,
        call: ModelCall,
        batches: Sequence[Batch],
        subset: RowSubset = RowSubset.ALL,
        finishes: str | None = None,
    ) -> SubmittedCall:
        """Send a call; `finishes` is the id of the call whose rows it finishes."""
        planned = self._planned(call)
        request = CallRequest(
            call,
            self.step,
            self.graph,
            self.incarnation,
            tuple(InputBatch(batch.shape) for batch in batches),
            planned.mini_batches,
            self._round,
            self._weight_changes[call.role],
            subset,
            call.id not in self.calls_on_data,
            self.repetition,
            self.score_calls.get(finishes or call.id, ()),
        )
        if call.role is not None and call.changes(call.role):
            self._weight_changes[call.role] += 1
        if call.kind is CallKind.SAVE:
            assert isinstance(call.options, SaveOptions)
            self.saves.append(SaveCall(call.options.name, batches[0]))
            return SubmittedCall([], None)
        pool = None if planned.mesh is None else planned.mesh.pool
        group = self.worker_groups[pool]
        sent = group.submit(request, batches, planned.mesh, planned.source_mesh)
        self.reports.extend(sent.reports)
        return sent

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
        """Run the body until its rows suffice. The only call of a step that waits for workers."""
        rows: Batch | None = None
        for number in range(max_rounds):
            self._round = number
            result = body(self.prompts if number == 0 else self._fresh_prompts())
            assert isinstance(result, Batch)
            rows = result if rows is None else rows.concat(result)
            self.rounds[region] = number + 1
            if number + 1 < max_rounds and self._is_enough(until(rows)):
                break
        self._round = 0
        assert rows is not None
        return rows

    def _fresh_prompts(self) -> Batch:
        """Request a new batch of prompts."""
        self._prompts.append(self._record_report(self.data.prompts(len(self._prompts))))
        return self._prompts[-1]

    def _is_enough(self, answer: BatchValue) -> bool:
        """Wait for a condition's answer."""
        assert isinstance(answer, Batch)
        column = answer.columns[ENOUGH]
        # The answer is the same in all rows: any shard will do.
        shard = next(shard for shard in column.segments[0].shards if shard.rows)
        *messages, answer_shard = wait_for([*self.reports, shard.reference], self.poll)
        fresh = messages[self._num_checked :]
        require_scores([CallReport.from_bytes(message) for message in fresh], self.graph, self.step)
        self._num_checked = len(messages)
        return bool(answer_shard.columns[column.names[0]].values.all())

    def _record_report(self, sent: tuple[Any, Batch]) -> Batch:
        report, batch = sent
        self.reports.append(report)
        return batch

    def wait(self) -> list[CallReport]:
        """Wait for the reports of all calls; raises the first error of any worker.

        Raises:
            NothingScored: a reward failed on all responses of a call.
        """
        reports = [CallReport.from_bytes(message) for message in wait_for(self.reports, self.poll)]
        self.reports.clear()
        self._num_checked = 0
        require_scores(reports, self.graph, self.step)
        return reports
