"""Samples have the columns of their own responses, whatever the algorithm does with them."""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import pytest

from rlhf_api.calls import CallKind
from rlhf_api.plan import GraphName
from rlhf_api.spec.job import RLHFJob
from rlhf_api.spec.stopping import StopReason
from rlhf_flow.jobs.job_graphs import trace_algorithms
from rlhf_flow.step.batch import BatchValue
from rlhf_flow.step.calls import GenerateOptions, ModelCall
from rlhf_flow.step.flow import Flow
from rlhf_flow.step.reward_terms import reward_terms
from rlhf_runtime.calls.requests import returned_columns
from rlhf_runtime.controller import fetched_columns
from rlhf_runtime.controller.batch import Batch, ShardRef, as_batch
from rlhf_runtime.controller.response_samples import ResponseColumns, SampleReader, chosen_rows
from rlhf_runtime.dataplane.columns import Column, Rows, pack, pack_texts
from rlhf_runtime.dataplane.partition import BatchShape
from rlhf_runtime.dataplane.shards import Shard, ShardIndex
from rlhf_runtime.hooks import Hook, noop
from rlhf_runtime.telemetry.samples import ResponseSample, SampleKind

from .jobs import make_job

SAMPLES = 4
PER_CALL = 1000
"""Scores of a call are its number x PER_CALL + the row."""


@dataclass(eq=False)
class Reference:
    """Stands for Ray's."""

    shard: Shard


class FakeBackend:
    """Makes columns whose values tell call and row, in two shards per call."""

    def __init__(self, num_prompts: int, responses: ResponseColumns) -> None:
        self.calls: list[str] = []
        # The calls that wrote the shards whose references still exist.
        self.referenced: WeakKeyDictionary[Reference, str] = WeakKeyDictionary()
        self._num_prompts = num_prompts
        self._responses = responses
        self._round = 0

    @property
    def prompts(self) -> Batch:
        first = 100 * self._round
        return self._batch(
            BatchShape(self._num_prompts),
            {
                "prompt_tokens": lambda rows: pack([[1]] * len(rows), np.int32),
                "prompt_id": lambda rows: Column(first + rows),
                "record": lambda rows: pack_texts(
                    [json.dumps({"prompt": f"prompt {first + row}"}) for row in rows.tolist()]
                ),
            },
        )

    def no_rows(self) -> Batch:
        return as_batch((), [], BatchShape(0))

    def pretraining(self) -> Batch:
        raise AssertionError("no step here asks for it")

    def every(self, region: str, n: int, body: Callable[[], None]) -> None:
        body()

    def repeat(
        self,
        region: str,
        body: Callable[[BatchValue], BatchValue],
        until: Callable[[BatchValue], BatchValue],
        max_rounds: int,
        expected_rounds: float,
    ) -> BatchValue:
        rows = body(self.prompts)
        until(rows)
        self._round = 1
        rows = rows.concat(body(self.prompts))
        until(rows)
        return rows

    def run(
        self, call: ModelCall, batch: BatchValue, auxiliary: Sequence[BatchValue] = ()
    ) -> Batch:
        assert isinstance(batch, Batch)
        self.calls.append(call.id)
        samples = call.options.samples if isinstance(call.options, GenerateOptions) else 1
        number, fresh = len(self.calls) - 1, 100 * self._round
        group_of = batch.shape.rows_per_group
        made: dict[str, Callable[[Rows], Column]] = {
            "prompt_id": lambda rows: Column(fresh + rows // samples),
            "record": lambda rows: pack_texts(
                [
                    json.dumps({"prompt": f"prompt {fresh + row // samples}"})
                    for row in rows.tolist()
                ]
            ),
            "response_tokens": lambda rows: pack([[7] * (1 + row % 3) for row in rows], np.int32),
            "response_text": lambda rows: pack_texts([f"{call.id} {row}" for row in rows.tolist()]),
            "stop_reason": lambda rows: pack_texts(
                ["TokenLimit" if row % 2 else "EndToken" for row in rows]
            ),
            "sample_index": lambda rows: Column(rows % samples),
            "advantages": lambda rows: pack(
                [[row + 0.5] * (1 + row % 3) for row in rows.tolist()], np.float32
            ),
        }
        scores = lambda rows: Column((number * PER_CALL + rows).astype(np.float32))  # noqa: E731
        valid = lambda rows: Column((rows % 5 != 1).astype(np.int8))  # noqa: E731
        for name in returned_columns(call):
            if name not in made:
                made[name] = scores if name.endswith("_scores") else valid
        result = batch.select()
        if names := returned_columns(call):
            shape = BatchShape(batch.shape.num_groups, group_of * samples)
            result = self._batch(shape, {name: made[name] for name in names})
            self.referenced.update((shard.reference, call.id) for shard in result.shards)
        self._responses.record(call, batch, result)
        return result

    def _batch(self, shape: BatchShape, columns: dict[str, Callable[[Rows], Column]]) -> Batch:
        shards = []
        middle = shape.num_rows // 2
        for bounds in (range(middle), range(middle, shape.num_rows)):
            rows = np.asarray(bounds, dtype=np.int64)
            groups = rows // max(1, shape.rows_per_group)
            index = ShardIndex(rows, groups, np.ones(len(rows), dtype=np.int32))
            shard = Shard(index, {name: make(rows) for name, make in columns.items()})
            shards.append(ShardRef(Reference(shard), bounds))
        return as_batch(tuple(columns), shards, shape)


def samples_of(
    job: RLHFJob, graph: GraphName, num_prompts: int, fetched: list[int] | None = None
) -> tuple[list[str], tuple[ResponseSample, ...]]:
    """The calls of a pass, and its samples."""
    responses = ResponseColumns()
    backend = run_pass(job, graph, num_prompts, responses)
    return backend.calls, SampleReader(job.spec).read(graph, 10, responses, noop)


def run_pass(
    job: RLHFJob, graph: GraphName, num_prompts: int, responses: ResponseColumns
) -> FakeBackend:
    """Make all calls of a pass."""
    backend = FakeBackend(num_prompts, responses)
    algorithm = trace_algorithms(job)[graph].algorithm
    spec = job.spec
    flow = Flow(
        algorithm.roles(), backend, spec.rollout.samples_per_prompt, reward_terms(spec.rewards)
    )
    with flow.step():
        algorithm.step(flow, backend.prompts)
    return backend


@pytest.fixture(autouse=True)
def fetched(monkeypatch: pytest.MonkeyPatch) -> list[Reference]:
    """The references whose shards were fetched."""
    references: list[Reference] = []

    def fetch(wanted: Sequence[Reference], poll: Hook) -> list[Shard]:
        references.extend(wanted)
        return [reference.shard for reference in wanted]

    monkeypatch.setattr(fetched_columns, "wait_for", fetch)
    return references


FUNCTION = {"function": {"entrypoint": "verifiers:exact"}}
TWO_REWARDS = [{"name": "exact", **FUNCTION}, {"name": "short", "weight": 0.5, **FUNCTION}]


@pytest.mark.parametrize(
    ("algorithm", "generate", "scored"),
    [
        ({"type": "GRPO"}, "actor.generate", "reward.score"),
        ({"type": "PPO"}, "actor.generate", "reward.score"),
        ({"type": "ReMax"}, "actor.generate", "reward.score"),
        ({"type": "OnlineDPO", "onlineDPO": {"savePairs": True}}, "actor.generate", "reward.score"),
        ({"type": "DAPO"}, "repeat/actor.generate", "repeat/reward.score"),
    ],
    ids=lambda value: value.get("type") if isinstance(value, dict) else None,
)
def test_a_step_samples_the_responses_that_it_trains_on(
    algorithm: dict[str, Any], generate: str, scored: str
) -> None:
    fields = {"train": {"path": "train.jsonl", "promptField": "prompt"}}
    job = make_job(algorithm=algorithm, rewards=TWO_REWARDS, data=fields)
    calls, samples = samples_of(job, GraphName.STEP, num_prompts=16)
    assert len(samples) == 16
    score = calls.index(scored) * PER_CALL
    for number, sample in enumerate(samples):
        # Four prompts with four responses each: the first rows of the batch.
        row = number
        assert (sample.kind, sample.step) == (SampleKind.STEP, 10)
        assert (sample.prompt_id, sample.sample) == (row // SAMPLES, row % SAMPLES)
        assert sample.prompt == f"prompt {row // SAMPLES}"
        assert sample.response == f"{generate} {row}"
        assert sample.tokens == 1 + row % 3
        assert sample.ended_by is (StopReason.TOKEN_LIMIT if row % 2 else StopReason.END_TOKEN)
        names = ["reward", "reward/exact", "reward/short"]
        assert list(sample.scores) == names
        counts = row % 5 != 1
        assert set(sample.scores.values()) == {score + row if counts else None}
        has_advantage = algorithm["type"] != "OnlineDPO"
        assert sample.advantage == (row + 0.5 if has_advantage else None)
        assert sample.row == f"train.jsonl, row {row // SAMPLES}, counted from 0"


def test_only_the_shards_of_the_first_prompts_are_fetched(fetched: list[Reference]) -> None:
    samples_of(make_job(), GraphName.STEP, num_prompts=16)
    # 64 responses are in two shards of each call: generate, score, advantages.
    assert len(fetched) == 3
    assert {int(reference.shard.index.rows[0]) for reference in fetched} == {0}


def test_shards_without_a_column_of_samples_are_not_referenced() -> None:
    """Log-probabilities and values of a step would stay in the object store until it is read."""
    job = make_job(
        algorithm={"type": "PPO", "ppo": {"klCoefficient": 0.1}},
        models={
            "actor": {"source": {"builtin": "TinyLlama"}},
            "critic": {"source": {"sameAs": "actor"}},
        },
        rewards=TWO_REWARDS,
    )
    responses = ResponseColumns()
    backend = run_pass(job, GraphName.STEP, 16, responses)
    gc.collect()
    unneeded = {"reference.log_probs", "critic.values"}
    assert unneeded <= {*backend.calls}
    assert {*backend.referenced.values()} == {"actor.generate", "reward.score", "compute"}
    samples = SampleReader(job.spec).read(GraphName.STEP, 10, responses, noop)
    assert samples[0].scores["reward"] is not None and samples[0].advantage == 0.5


def test_an_evaluation_samples_prompts_of_all_its_data() -> None:
    held_out = {
        "sources": [{"name": "easy", "path": "e.jsonl"}, {"name": "hard", "path": "h.jsonl"}],
        "samplesPerPrompt": 2,
        "temperature": 1.0,
    }
    job = make_job(data={"train": {"path": "t.jsonl"}, "evaluation": held_out}, rewards=TWO_REWARDS)
    calls, samples = samples_of(job, GraphName.EVALUATION, num_prompts=24)
    assert [sample.prompt_id for sample in samples[::2]] == [0, 3, 6, 9, 12, 15, 18, 21]
    assert [sample.sample for sample in samples] == [0, 1] * 8
    assert samples[4].response == "actor.generate 12"
    assert samples[4].scores["reward"] == calls.index("reward.score") * PER_CALL + 12
    assert samples[0].advantage is None
    assert samples[0].row == "e.jsonl, row 0, counted from 0"


def test_a_score_of_functions_and_models_has_all_its_terms() -> None:
    # The sum is of a batch with scores alone, in which the model's column has another name.
    judged = {"name": "judged", "model": {"path": "judge"}}
    data = {"train": {"path": "t.jsonl"}, "evaluation": {"path": "e.jsonl"}}
    job = make_job(rewards=[TWO_REWARDS[0], judged], data=data)
    for graph in (GraphName.STEP, GraphName.EVALUATION):
        calls, samples = samples_of(job, graph, num_prompts=16)
        (by_model,) = [number for number, call in enumerate(calls) if call.endswith(".scores")]
        assert samples[0].scores == {
            "reward": (by_model + 1) * PER_CALL,
            "reward/exact": calls.index("reward.score") * PER_CALL,
            "reward/judged": by_model * PER_CALL,
        }


def test_a_step_that_samples_nothing_has_no_samples() -> None:
    data = {"train": {"path": "t.jsonl", "preferences": {}}}
    job = make_job(algorithm={"type": "DPO"}, data=data, rewards=[])
    responses = ResponseColumns()
    assert SampleReader(job.spec).read(GraphName.STEP, 1, responses, noop) == ()
    call = ModelCall("actor.train", "actor", "train", CallKind.TRAIN, (), ())
    rows = FakeBackend(4, responses).prompts
    responses.record(call, rows, rows.select())
    assert SampleReader(job.spec).read(GraphName.STEP, 1, responses, noop) == ()


@pytest.mark.parametrize(
    ("kind", "shape", "rows"),
    [
        (SampleKind.STEP, BatchShape(8, 2), list(range(16))),
        (SampleKind.STEP, BatchShape(3, 8), [0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19]),
        (SampleKind.EVALUATION, BatchShape(100, 1), [i * 100 // 16 for i in range(16)]),
        (SampleKind.EVALUATION, BatchShape(3, 1), [0, 1, 2]),
        (SampleKind.STEP, BatchShape(0, 1), []),
    ],
)
def test_chosen_rows_are_few_and_depend_on_the_shape_only(
    kind: SampleKind, shape: BatchShape, rows: list[int]
) -> None:
    assert chosen_rows(kind, shape).tolist() == rows


GENERATE = ModelCall(
    *("actor.generate", "actor", "generate", CallKind.GENERATE, ()),
    ("response_text", "response_tokens", "sample_index", "stop_reason"),
    ("prompt_id", "record"),
    GenerateOptions(1),
)


def test_conversations_reach_the_samples() -> None:
    responses = ResponseColumns()
    backend = FakeBackend(2, responses)
    job = make_job(rewards=TWO_REWARDS)
    made = backend.run(GENERATE, backend.prompts)
    turns = [{"text": "x" * 9000, "calls": [], "answers": [], "wrong": [], "reward": 0.25}]
    records = [json.dumps({"turns": turns, "reward": 1.5, "failure": None}), ""]
    texts: dict[str, Callable[[Rows], Column]] = {
        "episode": lambda rows: pack_texts([records[row] for row in rows.tolist()])
    }
    result = backend._batch(BatchShape(2), texts)
    responses.record(ModelCall("c", None, "c", CallKind.COMPUTE, (), ("episode",)), made, result)
    first, second = SampleReader(job.spec).read(GraphName.STEP, 1, responses, noop)
    assert first.conversation is not None and second.conversation is None
    (turn,) = first.conversation.turns
    assert (first.conversation.reward, turn.reward, turn.number) == (1.5, 0.25, 0)
    assert "[... 3000 characters ...]" in turn.text


def test_only_tokens_that_are_trained_on_count_in_an_advantage() -> None:
    responses = ResponseColumns()
    backend = FakeBackend(2, responses)
    made = backend.run(GENERATE, backend.prompts)
    values = {
        "advantages": [[1.0, 5.0], [float("nan")]],
        "response_mask": [[1, 0], [0]],
        "judge_scores": [0.1, float("nan")],
    }
    columns: dict[str, Callable[[Rows], Column]] = {
        "advantages": lambda rows: pack([values["advantages"][row] for row in rows], np.float32),
        "response_mask": lambda rows: pack([values["response_mask"][row] for row in rows], np.int8),
        "judge_scores": lambda rows: Column(np.float32([values["judge_scores"][r] for r in rows])),
    }
    result = backend._batch(BatchShape(2), columns)
    compute = ModelCall("compute", None, "compute", CallKind.COMPUTE, (), tuple(columns))
    responses.record(compute, made, result)
    answers = {"train": {"path": "train.jsonl", "answerField": "answer"}}
    spec = make_job(rewards=[], algorithm={"type": "SFT"}, data=answers).spec
    samples = SampleReader(spec).read(GraphName.STEP, 1, responses, noop)
    assert [sample.advantage for sample in samples] == [1.0, None]
    assert [sample.scores for sample in samples] == [{"judge": 0.1}, {"judge": None}]
