"""Runs one pass of an algorithm and merges the workers' reports into metrics, phases and spans."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rlhf_api.calls import CallKind
from rlhf_api.plan import GraphName
from rlhf_api.spec.stopping import TRAIN_ON_ALL
from rlhf_flow.step.algorithm import Algorithm
from rlhf_flow.step.flow import Flow
from rlhf_flow.step.reward_terms import reward_terms
from rlhf_flow.trace.graph import Graph
from rlhf_runtime.calls.ended_rows import ScoreCall
from rlhf_runtime.calls.reports import CallReport, merge_statistics
from rlhf_runtime.controller.batch import Batch, ShardRef, as_batch
from rlhf_runtime.controller.call_names import CallNames
from rlhf_runtime.controller.dispatch import StepBackend
from rlhf_runtime.controller.environments import require_environments
from rlhf_runtime.controller.local_ray import object_store_bytes
from rlhf_runtime.controller.response_samples import ResponseColumns, SampleReader
from rlhf_runtime.controller.saved_lines import lines_by_name
from rlhf_runtime.controller.scoring import host_notices, is_unscored, unscored_samples
from rlhf_runtime.controller.workers import Workers
from rlhf_runtime.dataplane.partition import BatchShape
from rlhf_runtime.rewards.scores import Failure
from rlhf_runtime.telemetry.records import Span
from rlhf_runtime.telemetry.samples import ResponseSample
from rlhf_runtime.telemetry.timeline_chart import busy_seconds
from rlhf_runtime.workers.process import resident_bytes

MIN_PASS_SECONDS = 1e-3
"""Rates are numbers per second of a pass."""


@dataclass(frozen=True)
class PassResult:
    """Result of one pass."""

    metrics: Mapping[str, float]
    phases: Mapping[str, float]
    """Seconds per kind of call, of the slowest process."""
    spans: tuple[Span, ...]
    seconds: float
    tokens: int
    memory: Mapping[str, int]
    """Resident bytes by process, and of Ray's object store."""
    unscored: tuple[tuple[str, Failure], ...] = ()
    """Samples that verifiers could not score, with the reward's name."""
    is_unscored: bool = False
    """True if there are responses, but none has a score that counts."""
    notices: tuple[str, ...] = ()
    """Texts of reward hosts for users."""
    lines: Mapping[str, bytes] = field(default_factory=dict)
    """Saved lines by name."""
    samples: tuple[ResponseSample, ...] = ()
    """Some of its responses; empty if the manifest wants none of this pass."""


@dataclass(frozen=True)
class SubmittedPass:
    """A pass whose calls have all been sent."""

    backend: StepBackend
    start: float
    """Unix seconds."""
    names: CallNames
    """Names of its metrics."""


class PassRunner:
    """Runs passes of the job's graphs over one incarnation of workers.

    Passes are submitted ahead and run in the order of submission: while workers run one, the next
    already waits for them.
    """

    def __init__(self, workers: Workers, graphs: Mapping[GraphName, Graph]) -> None:
        self._workers = workers
        self._graphs = graphs
        self._names = {name: CallNames(graph) for name, graph in graphs.items()}
        self._score_calls = {name: _score_calls(graph) for name, graph in graphs.items()}
        self._last_end = 0.0
        self._sample_reader = SampleReader(workers.job.spec)

    def train(self, algorithm: Algorithm, step: int) -> SubmittedPass:
        """Submit a training step; steps count from 1. A step with `flow.repeat` waits for its
        rounds."""
        spec = self._workers.job.spec
        rows_per_prompt = 1 if spec.data.train.preferences is None else 2
        shape = BatchShape(spec.schedule.prompts_per_step, rows_per_prompt)
        return self._submit(GraphName.STEP, algorithm, step, shape)

    def warm_start(self, algorithm: Algorithm, step: int) -> SubmittedPass:
        """Submit a supervised step; steps count from 1."""
        settings = self._workers.job.spec.schedule.warm_start
        assert settings is not None
        return self._submit(
            GraphName.WARM_START, algorithm, step, BatchShape(settings.prompts_per_step)
        )

    def evaluate(self, algorithm: Algorithm, step: int) -> SubmittedPass:
        """Submit an evaluation of all evaluation prompts, after `step` steps."""
        shape = BatchShape(self._workers.counts["evaluation"])
        return self._submit(GraphName.EVALUATION, algorithm, step, shape)

    def evaluate_warm_start(self, algorithm: Algorithm, step: int) -> SubmittedPass:
        """Submit an evaluation after so many steps of the warm start. It has no samples."""
        shape = BatchShape(self._workers.counts["evaluation"])
        # Files of samples are named by training steps: step 0 is the evaluation before training.
        return self._submit(
            GraphName.EVALUATION, algorithm, 0, shape, has_samples=False, repetition=step
        )

    def wait(self, submitted: SubmittedPass) -> PassResult:
        """Wait for a pass. Passes end in the order of submission."""
        reports = submitted.backend.wait()
        environment = self._workers.job.spec.rollout.environment
        if environment is not None:
            graph, step = submitted.backend.graph, submitted.backend.step
            require_environments(reports, environment.max_failed_share, graph, step)
        start = max(submitted.start, self._last_end)
        self._last_end = last_end(reports)
        done = summarize(reports, start, self._last_end, submitted.names)
        own = {"driver": resident_bytes(), "object store": object_store_bytes()}
        rounds = {
            f"{name.replace('#', '.')}/rounds": float(number)
            for name, number in submitted.backend.rounds.items()
        }
        return replace(
            done,
            metrics={**done.metrics, **rounds},
            memory={**done.memory, **own},
            lines=lines_by_name(submitted.backend.saves, self._workers.poll),
            samples=self._read_samples(submitted.backend),
        )

    def _read_samples(self, backend: StepBackend) -> tuple[ResponseSample, ...]:
        if backend.responses is None:
            return ()
        return self._sample_reader.read(
            backend.graph, backend.step, backend.responses, self._workers.poll
        )

    def _submit(
        self,
        graph: GraphName,
        algorithm: Algorithm,
        step: int,
        shape: BatchShape,
        has_samples: bool = True,
        repetition: int = 0,
    ) -> SubmittedPass:
        start = time.time()
        workers = self._workers
        backend = StepBackend(
            workers.plan,
            workers.worker_groups,
            HostedData(workers, graph, step, shape),
            graph,
            step,
            workers.incarnation,
            self._graphs[graph].calls_on_data,
            repetition,
            workers.poll,
            score_calls=self._score_calls[graph],
        )
        if has_samples and self._sample_reader.wants(graph, step):
            backend.responses = ResponseColumns()
        spec = workers.job.spec
        samples, rewards = spec.rollout.samples_per_prompt, reward_terms(spec.rewards)
        # An evaluation measures all responses, whatever their end.
        is_step = graph is GraphName.STEP
        on_stop = spec.rollout.stop_actions if is_step else TRAIN_ON_ALL
        truncates = is_step and spec.rollout.truncation.is_active
        converses = spec.rollout.environment is not None
        flow = Flow(algorithm.roles(), backend, samples, rewards, on_stop, truncates, converses)
        with flow.step():
            algorithm.step(flow, backend.prompts)
        backend.send_deferred()
        return SubmittedPass(backend, start, self._names[graph])


def _score_calls(graph: Graph) -> dict[str, tuple[ScoreCall, ...]]:
    """Return the calls that score the responses of a call and read nothing else, by its id."""
    return {
        generate.id: tuple(
            ScoreCall(call.id, call.role)
            for call in graph.scores_of_responses(generate)
            if call.role is not None
        )
        for generate in graph.calls_of_kind(CallKind.GENERATE)
    }


@dataclass(frozen=True)
class HostedData:
    """Rows of a pass, from the data host."""

    workers: Workers
    graph: GraphName
    step: int
    shape: BatchShape
    """Shape of a batch of its prompts."""

    def prompts(self, number: int) -> tuple[Any, Batch]:
        """Return a batch of prompts, one per number."""
        report, reference = self._returning(self.workers.data.batch).remote(
            self.graph, self.step, number
        )
        fields = self.workers.plan.inputs[self.graph].prompts
        return report, _from_host(reference, fields, self.shape)

    def pretraining(self) -> tuple[Any, Batch]:
        """Return the rows of data.pretraining."""
        report, reference = self._returning(self.workers.data.pretraining).remote(
            self.graph, self.step
        )
        num_rows = self.workers.job.spec.pretraining_rows_per_step
        assert num_rows is not None
        fields = self.workers.plan.inputs[self.graph].pretraining
        return report, _from_host(reference, fields, BatchShape(num_rows))

    @staticmethod
    def _returning(method: Any) -> Any:
        return method.options(num_returns=2)


def _from_host(reference: Any, fields: Sequence[str], shape: BatchShape) -> Batch:
    return as_batch(fields, [ShardRef(reference, range(shape.num_rows))], shape)


def last_end(reports: Sequence[CallReport]) -> float:
    """Return the end of a pass's last call by the workers' clocks."""
    # The driver may get a report later than its call ended.
    return max((span.end for report in reports for span in report.spans), default=time.time())


def summarize(
    reports: Sequence[CallReport], start: float, end: float, names: CallNames
) -> PassResult:
    """Merge the reports of a pass."""
    metrics = merge_statistics(
        [names.for_call(report.call).rename(report.statistics) for report in reports]
    )
    spans = tuple(span for report in reports for span in report.spans)
    tokens = int(metrics.pop("batch/tokens", 0))
    memory = {report.spans[-1].process: report.memory_bytes for report in reports if report.spans}
    seconds = _pass_seconds(spans, start, end)
    return PassResult(
        metrics,
        _phases(spans),
        spans,
        seconds,
        tokens,
        memory,
        unscored_samples(reports),
        is_unscored(reports),
        host_notices(reports),
    )


def _pass_seconds(spans: Sequence[Span], start: float, end: float) -> float:
    """The duration of a pass, above 0."""
    # The driver's clock says the start, a worker's the end. They may differ, and may be set back.
    if end <= start:
        start = min((span.start for span in spans), default=end)
    return max(end - start, MIN_PASS_SECONDS)


def _phases(spans: Sequence[Span]) -> dict[str, float]:
    by_process: dict[tuple[str, str], list[Span]] = {}
    for span in spans:
        phase = PHASES.get(span.call)
        if phase is not None:
            by_process.setdefault((phase, span.process), []).append(span)
    phases: dict[str, float] = {}
    for (phase, _), calls in by_process.items():
        phases[phase] = max(phases.get(phase, 0.0), busy_seconds(calls))
    return phases


# The phase that each kind of call counts towards.
PHASES: Mapping[str, str] = {
    "reshard": "transition",
    "release": "transition",
    "load": "transition",
    "offload": "transition",
    "generate": "generate",
    "finish": "generate",
    "score": "score",
    "log_probs": "infer",
    "values": "infer",
    "scores": "score",
    "scores_of_texts": "score",
    "compute": "compute",
    "train": "train",
    "copy_weights_from": "copy",
}
