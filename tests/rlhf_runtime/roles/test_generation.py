"""What is sampled, and what is counted of responses."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from rlhf_api.plan import GraphName, OffloadDepth
from rlhf_api.spec.data import EvaluationData
from rlhf_api.spec.failure import FailurePolicy
from rlhf_api.spec.rollout import RolloutSpec
from rlhf_api.spec.stopping import StopReason
from rlhf_api.spec.truncation import Truncation
from rlhf_planner.plan import make_plan
from rlhf_planner.problem.devices import GIB, local_inventory
from rlhf_runtime.controller.restarts import Restarts
from rlhf_runtime.data.row_record import row_record
from rlhf_runtime.dataplane.columns import Column, pack, pack_texts
from rlhf_runtime.dataplane.protocol import Coordinates
from rlhf_runtime.dataplane.shards import ShardIndex
from rlhf_runtime.engines.generation import EngineSettings
from rlhf_runtime.engines.response_batch import Generated, Sampling
from rlhf_runtime.errors import StaleWeights, UnsupportedModel
from rlhf_runtime.roles import generation as generation_module
from rlhf_runtime.roles.generation import Generation, sample_numbers
from rlhf_runtime.roles.response_results import ResponseResults, in_large_groups, num_empty
from rlhf_runtime.roles.sequence_migration import Prompts

from .small_batch import make_job


def seeds_of(graph: GraphName, call: str, step: int = 1, round: int = 0) -> Any:
    """Of two samples of one prompt."""
    return tuple(sampling_of(graph, call, step, round).seeds)


def sampling_of(
    graph: GraphName,
    call: str = "actor.generate",
    step: int = 1,
    round: int = 0,
    temperature: float = 1.0,
    data: Any = None,
    **limits: Any,
) -> Sampling:
    generation = Generation.__new__(Generation)
    spec = SimpleNamespace(
        schedule=SimpleNamespace(seed=7),
        rollout=RolloutSpec(**limits),
        data=SimpleNamespace(evaluation=data),
    )
    generation._context = SimpleNamespace(job=SimpleNamespace(spec=spec))  # type: ignore[assignment]
    call_of: Any = SimpleNamespace(id=call)
    inputs: Any = SimpleNamespace(graph=graph, call=call_of, step=step, round=round)
    index = ShardIndex(np.arange(2), np.zeros(2, np.int64), np.ones(2, np.int32))
    columns = {
        "prompt_id": Column(np.array([5, 5])),
        "sample_index": Column(np.array([0, 1])),
    }
    return generation._sampling(Prompts(index, columns), inputs, temperature)


def test_steps_and_evaluations_have_their_own_truncation() -> None:
    """An evaluation's is not recorded, as nothing is trained on its responses."""
    limits: dict[str, Any] = {"top_p": 0.9, "top_k": 40}
    held_out = EvaluationData(path="/e", temperature=0.6, min_p=0.1)
    found = [
        sampling_of(GraphName.STEP, data=held_out, **limits),
        sampling_of(GraphName.EVALUATION, data=held_out, **limits),
        sampling_of(GraphName.EVALUATION, **limits),
        sampling_of(GraphName.STEP, temperature=0.0, **limits),
        sampling_of(GraphName.STEP),
        sampling_of(GraphName.STEP, top_p=1.0),
    ]
    assert [(one.truncation, one.records_kept_tokens) for one in found] == [
        (Truncation(top_p=0.9, top_k=40), True),
        (Truncation(min_p=0.1), False),
        (Truncation(), False),
        (Truncation(), False),
        (Truncation(), False),
        (Truncation(top_p=1.0), False),
    ]


def test_every_call_of_every_graph_and_step_samples_anew() -> None:
    first = seeds_of(GraphName.STEP, "actor.generate")
    assert first == seeds_of(GraphName.STEP, "actor.generate") and first[0] != first[1]
    others = (
        seeds_of(GraphName.STEP, "actor.generate#2"),
        seeds_of(GraphName.EVALUATION, "actor.generate"),
        seeds_of(GraphName.STEP, "actor.generate", step=2),
        seeds_of(GraphName.STEP, "actor.generate", round=1),
    )
    assert len({*first, *(seed for seeds in others for seed in seeds)}) == 10


def test_blank_responses_are_empty() -> None:
    assert num_empty(["", " \n\t", "7", " 7 "]) == 2


class Parts(NamedTuple):
    """Of a role on a rank: what a transition is made of."""

    trainer: object
    source: object
    engine: Any


class Engine:
    """Counts how often its memory was given back."""

    released = 0

    def release(self) -> None:
        self.released += 1


class Trainer:
    """Notes how much of it has left its device."""

    offloaded = OffloadDepth.NOTHING

    def views(self) -> str:
        assert self.offloaded is OffloadDepth.NOTHING
        return "views"

    def offload(self, depth: OffloadDepth) -> None:
        self.offloaded = depth


@pytest.mark.parametrize("trains", [True, False])
@pytest.mark.parametrize("generates", [True, False])
def test_a_rank_has_the_methods_of_what_is_on_it(
    monkeypatch: pytest.MonkeyPatch, trains: bool, generates: bool
) -> None:
    """Each that trains or generates takes part in a reshard; without an engine in nothing else. The
    engine starts when the trainer has left, and is released before the rest is planned."""
    plan: Any = SimpleNamespace(release_during_training=True)
    context: Any = SimpleNamespace(
        environment=None,
        plan=SimpleNamespace(generation=lambda role: plan),
        job=make_job(Path("model")),
        role="actor",
        sync_group=object(),
        generates_here=generates,
        engine_group=None,
        folder=None,
        role_plan=SimpleNamespace(offload=OffloadDepth.EVERYTHING),
    )
    trainer: Any = Trainer() if trains else None
    there = []

    def start(self: Generation, plan: Any) -> Engine:
        there.append(trains and trainer.offloaded is OffloadDepth.NOTHING)
        return Engine()

    def weight_sync(*parts: Any) -> Parts:
        assert not generates or parts[2].released == 1
        return Parts(*parts[:3])

    monkeypatch.setattr(generation_module, "TextTokenizer", lambda folder, ends: None)
    monkeypatch.setattr(generation_module, "WeightSync", weight_sync)
    monkeypatch.setattr(Generation, "_start_engine", start)
    made = Generation(context, trainer)
    parts: Any = made._weight_sync
    assert made.engine is parts.trainer is trainer
    assert set(made.methods) == {"reshard", *(("generate", "release") if generates else ())}
    assert (parts.engine is not None) == generates
    assert parts.source == ("views" if trains else {})
    assert there == ([False] if generates else [])


def test_engines_exclude_the_tokens_that_the_trainer_excludes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    job = make_job(tmp_path, models={"actor": {"source": {"builtin": "TinyLlama"}}})
    _, plan = make_plan(job, [local_inventory(1, 16 * GIB)])
    (tmp_path / "config.json").write_text('{"max_position_embeddings": 30}')
    generation, settings = Generation.__new__(Generation), list[EngineSettings]()
    context: Any = SimpleNamespace(
        job=job, plan=plan, role="actor", folder=tmp_path, precision=torch.float32
    )
    context.incarnation, context.world = "new", None
    context.excluded_tokens = (range(64, 71),)
    generation._context = context
    tokenizer: Any = SimpleNamespace(end_token_ids=(1,), stop_texts=list)
    generation._tokenizer = tokenizer
    monkeypatch.setattr(
        generation_module, "make_generation_engine", lambda _, given, __: settings.append(given)
    )
    planned = plan.generation("actor")
    assert planned is not None
    generation._start_engine(planned)
    assert [given.excluded_tokens for given in settings] == [(range(64, 71),)]
    assert settings[0].max_sequence_tokens == 30, "the context, if it is shorter"


class FirstTokenEngine(Engine):
    """Generates one token, or fails as it is told to."""

    def __init__(self, error: Exception | None) -> None:
        self.error = error
        self.asked: list[Any] = []

    def generate(self, prompts: Column, sampling: Sampling, version: int, max_tokens: int) -> None:
        self.asked.append((prompts.values.tolist(), sampling.temperature, version, max_tokens))
        if self.error is not None:
            raise self.error


def with_engine(error: Exception | None, releases: bool) -> tuple[Generation, FirstTokenEngine]:
    generation, engine = Generation.__new__(Generation), FirstTokenEngine(error)
    plan = SimpleNamespace(release_during_training=releases)
    plans = SimpleNamespace(generation=lambda role: plan)
    generation._context = SimpleNamespace(plan=plans, role="actor")  # type: ignore[assignment]
    generation._tokenizer = SimpleNamespace(eos_token_id=3)  # type: ignore[assignment]
    generation._generation_engine = engine  # type: ignore[assignment]
    generation._generator = engine  # type: ignore[assignment]
    weight_sync = SimpleNamespace(current_version=lambda required: 5)
    generation._weight_sync = weight_sync  # type: ignore[assignment]
    return generation, engine


@pytest.mark.parametrize("releases", [True, False])
def test_the_first_token_leaves_the_engine_as_it_was(releases: bool) -> None:
    generation, engine = with_engine(None, releases)
    generation.generate_first_token()
    assert engine.asked == [([3], 0.0, 5, 1)] and engine.released == int(releases)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (RuntimeError("head_dim=16"), UnsupportedModel),
        (NotImplementedError("this layer"), UnsupportedModel),
        (MemoryError(), MemoryError),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), RuntimeError),
        (StaleWeights("others"), StaleWeights),
        (RuntimeError("[gloo/transport/tcp/pair.cc:1] Connection closed by peer"), RuntimeError),
    ],
)
def test_what_an_engine_cannot_compute_is_the_models_and_not_tried_again(
    error: Exception, kind: type[Exception]
) -> None:
    generation, _ = with_engine(error, releases=True)
    with pytest.raises(kind) as caught:
        generation.generate_first_token()
    assert type(caught.value) is kind
    if kind is UnsupportedModel:
        text = f"model of actor: got {type(error).__name__} at its first token: {error}; choose a"
        assert text in str(caught.value)
        assert Restarts(FailurePolicy()).next_delay(caught.value, -1) is None


class CountingTokenizer:
    """Makes texts of numbers, and counts the rows."""

    def __init__(self) -> None:
        self.rows = 0

    def decode(self, responses: Column) -> list[str]:
        self.rows += responses.num_rows
        return ["".join(map(str, run)) for run in responses.runs()]


@pytest.mark.parametrize(("tensor", "rows"), [(0, 4), (1, 0)])
@pytest.mark.parametrize("has_sources", [False, True])
def test_responses_become_texts_and_are_counted_once(
    tensor: int, rows: int, has_sources: bool
) -> None:
    """On the rank of a replica whose shard counts; verifiers get these very texts."""
    rollout = {"samplesPerPrompt": 2, "onStop": {"TokenLimit": "Mask"}}
    generation = Generation.__new__(Generation)
    tokenizer = CountingTokenizer()
    generation._tokenizer = tokenizer  # type: ignore[assignment]
    named = [{"name": name, "path": f"{name}.jsonl"} for name in ("a", "b")]
    train = {"sources": named} if has_sources else {"path": "a.jsonl"}
    job = make_job(Path("model"), rollout=rollout, data={"train": train})
    context: Any = SimpleNamespace(job=job, send_ended=None)
    generation._context = context
    at = Coordinates(data=0, data_size=1, tensor=tensor, tensor_size=2)
    answered = ShardIndex(np.arange(4), np.arange(4) // 2, np.ones(4, dtype=np.int32))
    tokens = pack([[1, 2], [], [3], [4, 5]], np.int32)
    reasons = [StopReason.END_TOKEN, StopReason.TOKEN_LIMIT, *[StopReason.STOP_TEXT] * 2]
    generated = Generated(tokens, tokens, tuple(reasons))
    sources = ("a", "a", "b", "b") if has_sources else (None,) * 4
    records = pack_texts([row_record("?", "{}", source) for source in sources])
    prompts = Prompts(answered, {"prompt_tokens": pack([[9]] * 4, np.int32), "record": records})
    inputs: Any = SimpleNamespace(at=at, graph=GraphName.STEP, score_calls=())
    early = generation._early_rows(
        inputs, prompts, lambda: generated.finished > 0, lambda _: generated
    )
    made = ResponseResults(job.spec).result(inputs, prompts, generated, early)
    assert tokenizer.rows == rows
    assert made.columns["response_text"].texts() == ["12", "", "3", "45"][:rows]
    assert made.statistics.means["response/empty"] == (rows / 4, rows)
    assert made.statistics.means["response/truncated"] == (1.0, 4.0)
    assert made.statistics.means["response/stop_reason/StopText"] == (2.0, 4.0)
    assert made.statistics.sums["response/masked"] == rows / 4
    lengths = {name: mean for name, mean in made.statistics.means.items() if "length" in name}
    of_sources = {"response/a/length_mean": (2.0, 2.0), "response/b/length_mean": (3.0, 2.0)}
    assert lengths == {"response/length_mean": (5.0, 4.0), **(of_sources if has_sources else {})}


def test_samples_are_numbered_over_all_rows_of_a_prompt() -> None:
    """Three prompts, of which the second and the third were answered before."""
    groups = np.array([4, 9, 9, 2, 2])
    assert sample_numbers(groups, 2).tolist() == [0, 1, 0, 1, 2, 3, 0, 1, 2, 3]
    assert sample_numbers(groups[1:3], 2).tolist() == [0, 1, 2, 3], "on the rank that has them"


def test_prompts_with_few_retained_samples_are_left_out_whole() -> None:
    retained = np.array([1, 1, 0, 0, 1, 0], dtype=np.bool_)
    groups = np.array([4, 4, 4, 2, 2, 2])
    assert in_large_groups(retained, groups, 2).tolist() == [1, 1, 0, 0, 0, 0]
    assert in_large_groups(retained[:0], groups[:0], 2).tolist() == []


def test_a_prompt_with_one_response_has_enough_samples() -> None:
    retained = np.array([1, 0], dtype=np.bool_)
    assert in_large_groups(retained, np.array([4, 9]), 2).tolist() == [1, 0], "ReMax's baselines"
