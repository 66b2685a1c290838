"""Scenarios of preferences, of the losses that learn from them, and of reward models."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from transformers import AutoModelForSequenceClassification

from rlhf_api.plan import GraphName
from rlhf_flow.step.calls import ComputeOptions, TrainOptions
from rlhf_flow.step.losses import BradleyTerry, Dpo
from rlhf_flow.step.operations import BestAgainstWorst, PairLines
from rlhf_runtime.data.character_tokenizer import write_tokenizer
from rlhf_runtime.data.tokenizer import TextTokenizer
from rlhf_runtime.dataplane.columns import Column, pack_texts
from rlhf_runtime.engines.fsdp.engine import FsdpEngine
from rlhf_runtime.engines.packing import MicroBatch
from rlhf_runtime.engines.training import HeadReading, TokenOutputs
from rlhf_runtime.engines.world import World
from rlhf_runtime.roles.operations import compute
from rlhf_runtime.roles.scalar_model import ScalarModelRole

from ..engines.tiny_models import write_classifier
from ..meshes import parallel_of
from ..world_of_processes import Scenario
from .scenario_tools import (
    MASKS,
    OPTIMIZER,
    assert_trained_like,
    batch_for,
    close,
    make_policy,
    metrics_of,
    model_folder,
    plain,
    whole,
)
from .small_batch import (
    GROUPS,
    NUM_ROWS,
    PREFERENCE,
    call_of,
    context_of,
    inputs_of,
    make_batch,
    make_job,
    model_of,
)

FEW_TOKENS, MANY_TOKENS = 4, 4096
"""Of micro-batches with a row each, and with all rows of several prompts."""
EQUAL_ROWS = (6, 7)
"""Of one prompt, and of one length."""


def pairs_in(groups: tuple[int, ...]) -> list[tuple[int, int]]:
    """Every chosen with every rejected row of these prompts."""
    return [
        (one, other)
        for one, other in np.ndindex(NUM_ROWS, NUM_ROWS)
        if GROUPS[one] == GROUPS[other] in groups
        if (PREFERENCE[one], PREFERENCE[other]) == (1, -1)
    ]


def dpo_trains_by_the_formula(
    world: World,
    folder: Path,
    settings: dict[str, Any],
    shares: bool,
    has_mask: bool,
    tokens: int,
    reads_samples: bool = True,
) -> None:
    """Some prompts have several pairs, one has none, and rows are in no pair; however little fits
    at once, each pair counts."""
    place = model_folder(world, folder)
    actor = {"source": {"path": str(place)}, "training": {"microBatchTokens": tokens}}
    job = make_job(place, models={"actor": actor})
    loss = Dpo("reference_log_probs", **settings)
    call = replace(
        call_of(job, world, "actor.train"),
        reads=tuple(sorted(loss.reads)),
        options=TrainOptions(loss),
    )
    assert "rollout_log_probs" not in call.reads and call.compares_responses
    call, columns = batch_for(call, has_mask)
    columns["preference"] = Column(PREFERENCE)
    policy = make_policy(job, place, world)
    policy.engine._supports_shared_prompts &= shares
    seen = noted_rows(policy.engine)
    inputs = inputs_of(call, columns, world, mini_batches=2, reads_samples=reads_samples)
    metrics = metrics_of(policy.train(inputs), world)
    reference = plain(place, columns)
    if not reads_samples:
        reference.temperature = 1.0
    told: dict[str, list[float]] = {name: [] for name in ("chosen", "rejected", "margin")}
    for _ in range(loss.epochs_per_batch):
        for groups in ((0, 2), (1, 3)):
            losses = []
            for chosen, rejected in pairs_in(groups):
                better = reference.implicit_reward(chosen, loss.beta)
                worse = reference.implicit_reward(rejected, loss.beta)
                margin, doubt = better - worse, loss.label_smoothing
                right, wrong = (torch.log(1 + torch.exp(-sign * margin)) for sign in (1, -1))
                losses.append((1 - doubt) * right + doubt * wrong)
                for name, value in zip(told, (better, worse, better - worse), strict=True):
                    told[name].append(float(value))
            reference.step(torch.stack(losses).mean())
    assert len(told["margin"]) == 5 * loss.epochs_per_batch
    close(metrics["actor/loss"], float(np.mean(reference.losses)), "loss")
    close(metrics["actor/gradient_norm"], float(np.mean(reference.norms)), "gradient norm")
    close(metrics["actor/margin"], float(np.mean(told["margin"])), "margin")
    close(metrics["actor/accuracy"], float(np.mean(np.array(told["margin"]) > 0)), "accuracy")
    close(metrics["actor/chosen_reward"], float(np.mean(told["chosen"])), "chosen reward")
    close(metrics["actor/rejected_reward"], float(np.mean(told["rejected"])), "rejected reward")
    assert_trained_like(policy.engine, reference)
    assert policy.engine.version == len(reference.losses)
    own = torch.tensor([sum(seen)])
    dist.all_reduce(own)
    runs = 2 if tokens == FEW_TOKENS else 1
    assert int(own) == 8 * loss.epochs_per_batch * runs, "rows in no pair are not run"


def noted_rows(model: FsdpEngine) -> list[int]:
    """Gets the responses of every forward pass from now on."""
    seen: list[int] = []
    plain_outputs = model._outputs

    def outputs(part: MicroBatch, reading: HeadReading) -> TokenOutputs:
        seen.append(len(part.rows))
        return plain_outputs(part, reading)

    setattr(model, "_outputs", outputs)  # noqa: B010
    return seen


def dpo_without_a_pair_changes_nothing(world: World, folder: Path) -> None:
    place, columns = model_folder(world, folder), make_batch()
    columns["preference"] = Column(np.abs(PREFERENCE))
    loss = Dpo("reference_log_probs")
    call = replace(
        call_of(make_job(place), world, "actor.train"),
        reads=tuple(sorted(loss.reads)),
        options=TrainOptions(loss),
    )
    policy = make_policy(make_job(place), place, world)
    metrics = metrics_of(policy.train(inputs_of(call, columns, world)), world)
    assert metrics["actor/gradient_norm"] == 0 and metrics["actor/loss"] == 0
    assert "actor/accuracy" not in metrics and "actor/margin" not in metrics
    reference = plain(place, columns)
    reference.step(0 * reference.log_probs(0).sum())
    assert_trained_like(policy.engine, reference)


def the_best_is_preferred_to_the_worst(world: World, folder: Path) -> None:
    place, columns = model_folder(world, folder), make_batch()
    operation = BestAgainstWorst("reward_scores", "reward_valid")
    call = replace(
        call_of(make_job(place), world, "compute"),
        reads=operation.reads,
        writes=operation.writes,
        options=ComputeOptions((operation,)),
    )
    result = compute(inputs_of(call, columns, world), parallel_of(world), {})
    found = [int(each[0]) for each in whole(result, world)["preference"]]
    scores, valid = columns["reward_scores"].values, columns["reward_valid"].values
    for group in range(4):
        rows = [row for row in range(NUM_ROWS) if GROUPS[row] == group and valid[row]]
        best, worst = (max(rows, key=scores.__getitem__), min(rows, key=scores.__getitem__))
        expected = {best: 1, worst: -1} if scores[best] > scores[worst] else {}
        for row in range(NUM_ROWS):
            if GROUPS[row] == group:
                assert found[row] == expected.get(row, 0), (row, found)
    close(metrics_of(result, world)["groups/equal"], 0.25, "one of four groups is equal")


def pairs_become_lines(world: World, folder: Path) -> None:
    """Each where the chosen row is, on however many ranks."""
    place, columns = model_folder(world, folder), make_batch()
    rows = [{"prompt": f"{group}?"} for group in GROUPS]
    records = [json.dumps({"prompt": "written", "record": row}) for row in rows]
    columns["record"] = pack_texts(records)
    columns["response_text"] = pack_texts([f"answer {row}" for row in range(NUM_ROWS)])
    columns["preference"] = Column(PREFERENCE)
    operation = PairLines("reward_scores")
    call = replace(
        call_of(make_job(place), world, "compute"),
        reads=tuple(sorted(operation.reads)),
        writes=operation.writes,
        options=ComputeOptions((operation,)),
    )
    result = compute(inputs_of(call, columns, world), parallel_of(world), {})
    scores = columns["reward_scores"].values.tolist()
    found = [bytes(each.tolist()).decode() for each in whole(result, world)["lines"]]
    for row, text in enumerate(found):
        lines = [json.loads(line) for line in text.splitlines()]
        beaten = [
            other
            for other in range(NUM_ROWS)
            if GROUPS[other] == GROUPS[row] and PREFERENCE[row] > 0 > PREFERENCE[other]
        ]
        assert lines == [
            {
                **rows[row],
                **{"chosen": f"answer {row}", "rejected": f"answer {other}", "step": 1},
                **{"chosen_score": scores[row], "rejected_score": scores[other]},
            }
            for other in beaten
        ], (row, text)
    assert sum(map(bool, found)) > 1


def reward_model_trains_by_the_formula(world: World, folder: Path, tokens: int) -> None:
    """Some prompts have several pairs, one has none; no pair is torn between ranks, and each
    counts, however little fits at once."""
    place, columns = model_folder(world, folder), make_batch()
    columns["preference"] = Column(PREFERENCE)
    job = make_job(
        place,
        algorithm={"type": "PPO"},
        models={"actor": model_of(place), "critic": model_of(place, microBatchTokens=tokens)},
        schedule={"steps": 10, "promptsPerStep": 4, "miniBatchPrompts": 3},
    )
    loss = BradleyTerry(epochs_per_batch=2)
    call = replace(
        call_of(job, world, "critic.train"),
        reads=tuple(sorted(loss.reads)),
        options=TrainOptions(loss),
    )
    scorer = ScalarModelRole(context_of(job, "critic", place, world))
    scorer.engine.use_optimizer(OPTIMIZER)
    metrics = metrics_of(scorer.train(inputs_of(call, columns, world, mini_batches=2)), world)
    reference = plain(place, columns, value_head=True)
    margins: list[float] = []
    for _ in range(2):
        for groups in ((0, 2), (1, 3)):
            found = [reference.margin(*pair) for pair in pairs_in(groups)]
            margins += [float(margin) for margin in found]
            losses = [torch.log(1 + torch.exp(-margin)) for margin in found]
            zero = 0 * reference.margin(0, 1)
            reference.step(torch.stack(losses).mean() if losses else zero)
    assert len(margins) == 2 * 5, "the last prompt has no pair"
    close(metrics["critic/loss"], float(np.mean(reference.losses)), "loss")
    close(metrics["critic/gradient_norm"], float(np.mean(reference.norms)), "gradient norm")
    close(metrics["critic/margin"], float(np.mean(margins)), "margin")
    close(metrics["critic/accuracy"], float(np.mean(np.array(margins) > 0)), "accuracy")
    assert_trained_like(scorer.engine, reference)


def classifier_folder(world: World, folder: Path) -> Path:
    """A reward model whose numbers are no smaller than one."""
    place = folder / "classifier"
    if world.rank == 0:
        write_classifier("llama", place)
    dist.barrier()
    return place


def with_equal_responses(responses: Column) -> Column:
    """Two rows of a prompt with the same response."""
    rows = np.arange(NUM_ROWS)
    one, other = EQUAL_ROWS
    assert GROUPS[one] == GROUPS[other]
    assert not np.array_equal(responses.runs()[one], responses.runs()[other])
    rows[other] = one
    return responses.take(rows)


def a_reward_model_scores_as_transformers_does(
    world: World, folder: Path, precision: str, tolerance: float
) -> None:
    """Row by row, without padding; here rows share prompts and micro-batches."""
    place, columns = model_folder(world, folder), make_batch()
    columns["response_tokens"] = with_equal_responses(columns["response_tokens"])
    given = classifier_folder(world, folder)
    model = {"path": str(given), "precision": precision, "microBatchTokens": 60}
    job = make_job(place, rewards=[{"name": "learned", "model": model}])
    scorer = ScalarModelRole(context_of(job, "learned_model", given, world))
    call = call_of(job, world, "learned_model.scores")
    result = scorer.scores(inputs_of(call, columns, world))
    found = np.concatenate(whole(result, world, keep_groups=False)["learned_model_scores"])
    reference = AutoModelForSequenceClassification.from_pretrained(given, dtype=torch.float32)
    runs = zip(columns["prompt_tokens"].runs(), columns["response_tokens"].runs(), strict=True)
    rows = [torch.tensor(np.concatenate(pair), dtype=torch.long)[None] for pair in runs]
    with torch.no_grad():
        expected = [float(reference.eval()(row).logits) for row in rows]
    assert np.std(expected) > 0.5
    assert found[EQUAL_ROWS[0]] == found[EQUAL_ROWS[1]], "to the last bit"
    assert np.allclose(found, expected, atol=tolerance), (found, expected)
    metric = metrics_of(result, world)["reward/learned"]
    assert abs(metric - float(np.mean(found))) < 1e-5


DPO_SETTINGS: dict[str, dict[str, Any]] = {
    "one epoch, shared prompts": {"beta": 0.1},
    "two epochs, a prompt each": {"beta": 0.5, "label_smoothing": 0.2, "epochs_per_batch": 2},
}


def texts_are_read_by_the_data_that_they_are_of(world: World, folder: Path) -> None:
    """Held-out data have another field for their prompts; both are in the model's own tokens."""
    place, columns = model_folder(world, folder), make_batch()
    given = classifier_folder(world, folder)
    if world.rank == 0:
        write_tokenizer(given)
    dist.barrier()
    rows = [{"prompt": f"{group}=", "question": f"{group}+"} for group in GROUPS.tolist()]
    columns["record"] = pack_texts([json.dumps({"prompt": "", "record": row}) for row in rows])
    columns["response_text"] = pack_texts([str(row) for row in range(NUM_ROWS)])
    columns["finished"] = Column(np.ones(NUM_ROWS, dtype=np.int8))
    model = {"path": str(given), "tokenizer": "Own", "precision": "float32"}
    data = {
        "train": {"path": "train.jsonl"},
        "evaluation": {"path": "held-out.jsonl", "promptField": "question"},
    }
    job = make_job(place, rewards=[{"name": "own", "model": model}], data=data)
    scorer = ScalarModelRole(context_of(job, "own_model", given, world))
    call = call_of(job, world, "own_model.scores_of_texts")
    inputs, tokenizer = inputs_of(call, columns, world), TextTokenizer(given)
    reference = AutoModelForSequenceClassification.from_pretrained(given).eval()
    for graph, field in ((GraphName.STEP, "prompt"), (GraphName.EVALUATION, "question")):
        inputs.graph = graph
        result = scorer.scores_of_texts(inputs)
        found = np.concatenate(whole(result, world, keep_groups=False)["own_model_scores"])
        for number, row in enumerate(rows):
            tokens = tokenizer.encode([f"{row[field]}{number}"], True).values.tolist()
            with torch.no_grad():
                logits = reference(torch.tensor([[*tokens, tokenizer.eos_token_id]])).logits
            close(float(found[number]), float(logits), f"{field} of row {number}")


SCENARIOS: dict[str, Scenario] = {
    **{
        f"DPO trains by the formula ({name}{end})": partial(
            dpo_trains_by_the_formula,
            settings=settings,
            shares=name.endswith("shared prompts"),
            has_mask=has_mask,
            tokens=FEW_TOKENS,
        )
        for name, settings in DPO_SETTINGS.items()
        for end, has_mask in MASKS.items()
    },
    "DPO trains by the formula, whole pairs at once": partial(
        dpo_trains_by_the_formula, settings={}, shares=True, has_mask=True, tokens=MANY_TOKENS
    ),
    "DPO on pairs of the data does not depend on the temperature": partial(
        dpo_trains_by_the_formula,
        settings={},
        shares=True,
        has_mask=False,
        tokens=MANY_TOKENS,
        reads_samples=False,
    ),
    "DPO without a pair changes nothing": dpo_without_a_pair_changes_nothing,
    "the best is preferred to the worst": the_best_is_preferred_to_the_worst,
    "pairs become lines": pairs_become_lines,
    **{
        f"reward model trains by the formula ({tokens} tokens at once)": partial(
            reward_model_trains_by_the_formula, tokens=tokens
        )
        for tokens in (FEW_TOKENS, 60, MANY_TOKENS)
    },
    "a reward model scores as transformers does": partial(
        a_reward_model_scores_as_transformers_does, precision="float32", tolerance=1e-5
    ),
    "texts are read by the data that they are of": texts_are_read_by_the_data_that_they_are_of,
    "a reward model scores in bfloat16": partial(
        a_reward_model_scores_as_transformers_does, precision="bfloat16", tolerance=0.1
    ),
}
