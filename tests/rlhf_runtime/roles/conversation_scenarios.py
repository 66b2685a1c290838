"""Scenarios of training on conversations, from rows of the data to weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from rlhf_api.plan import GraphName
from rlhf_api.spec.data import OnInvalidRow, OnLongPrompt
from rlhf_api.spec.job import RLHFJob
from rlhf_runtime.calls.inputs import CallInputs
from rlhf_runtime.calls.requests import CallRequest, ColumnSource, InputBatch, Segment
from rlhf_runtime.data.character_tokenizer import write_tokenizer
from rlhf_runtime.data.prompts import build_prompt_table
from rlhf_runtime.data.row_limits import RowLimits
from rlhf_runtime.data.source_setting import SourceSetting, Split
from rlhf_runtime.data.tokenizer import TextTokenizer
from rlhf_runtime.dataplane.columns import Column
from rlhf_runtime.dataplane.partition import BatchShape
from rlhf_runtime.dataplane.protocol import Coordinates
from rlhf_runtime.dataplane.shards import Shard
from rlhf_runtime.engines.world import World
from rlhf_runtime.workers.data_host import batch_of

from ..world_of_processes import Scenario
from .plain_losses import Plain
from .scenario_tools import (
    close,
    make_policy,
    metrics_of,
    model_folder,
    parameters_of,
    plain,
)
from .small_batch import call_of, make_job, model_of, plan_of

TEMPLATE = (
    "{% for m in messages %}{{ '<' + m.role + '>' + m.content + eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<assistant>' }}{% endif %}"
)
Talk = Sequence[str]
"""Texts of user and assistant by turns."""
TALKS: tuple[Talk, ...] = (
    ("1+1=", "2", "and 2+2=?", "4, of course", "3+3=", "6"),
    ("sort 21", "12"),
    ("hi", "how can i help?", "bye", "bye"),
)
ENGINES = ("FSDP", "Megatron")


def messages_of(talk: Talk) -> list[dict[str, str]]:
    roles = ("user", "assistant") * len(talk)
    return [{"role": role, "content": text} for role, text in zip(roles, talk, strict=False)]


def tokenizer_in(world: World, folder: Path) -> TextTokenizer:
    place = folder / "tokenizer"
    if world.rank == 0:
        write_tokenizer(place)
        (place / "chat_template.jinja").write_text(TEMPLATE)
    dist.barrier()
    return TextTokenizer(place)


def job_of(place: Path, engine: str, train_on: str, algorithm: str) -> RLHFJob:
    train: dict[str, Any] = {"path": "rows.jsonl", "trainOn": train_on}
    if algorithm == "SFT":
        train |= {"promptField": "messages", "answerField": "messages"}
    else:
        train |= {"preferences": {}}
    model = model_of(place, engine=engine, precision="float32", microBatchTokens=90)
    return make_job(
        place,
        algorithm={"type": algorithm},
        models={"actor": model},
        data={"train": train},
        rewards=[],
        rollout={"maxPromptTokens": 99, "maxResponseTokens": 199},
    )


def shard_of(
    job: RLHFJob, rows: Sequence[Mapping[str, Any]], world: World, tokenizer: TextTokenizer
) -> Shard:
    """The batch of all rows, as the data host makes it."""
    limits = RowLimits(99, 199, OnInvalidRow.FAIL, OnLongPrompt.FAIL, 99)
    setting = SourceSetting(Split.TRAIN)
    table = build_prompt_table(
        [dict(row) for row in rows], job.spec.data.train, setting, tokenizer, limits
    )
    fields = plan_of(job, world)[1].inputs[GraphName.STEP].prompts
    return batch_of(table, np.arange(len(rows)), fields)


def train(
    job: RLHFJob, shard: Shard, place: Path, world: World
) -> tuple[dict[str, float], dict[str, torch.Tensor]]:
    """One update of the model: metrics and new weights."""
    call = call_of(job, world, "actor.train")
    columns = {name: name for name in call.reads}
    groups = len(np.unique(shard.index.groups))
    batch = InputBatch(
        BatchShape(groups, len(shard.index.rows) // groups), (ColumnSource((Segment(1, columns),)),)
    )
    request = CallRequest(call, 1, GraphName.STEP, "test", (batch,), 1, reads_samples=False)
    policy = make_policy(job, place, world)
    place_of_rank = Coordinates(data=world.rank, data_size=world.size)
    metrics = metrics_of(policy.train(CallInputs(request, [shard], place_of_rank)), world)
    return metrics, dict(parameters_of(policy.engine))


def labelled(talk: Talk, tokenizer: TextTokenizer) -> tuple[torch.Tensor, torch.Tensor]:
    """The tokens of a conversation, and labels as transformers takes them."""
    tokens, labels = list[int](), list[int]()
    for message in messages_of(talk):
        is_answer = message["role"] == "assistant"
        for text, is_trained in (
            (f"<{message['role']}>", False),
            (f"{message['content']}<eos>", is_answer),
        ):
            (run,) = tokenizer.encode([text], add_special_tokens=False).runs()
            tokens += run.tolist()
            labels += run.tolist() if is_trained else [-100] * len(run)
    return torch.tensor(tokens)[None], torch.tensor(labels)[None]


def cross_entropy(reference: Plain, talk: Talk, tokenizer: TextTokenizer) -> tuple[Any, int]:
    """The sum of transformers' own cross entropy over a conversation's labels, and their number."""
    tokens, labels = labelled(talk, tokenizer)
    count = int((labels != -100).sum())
    return reference.module(input_ids=tokens, labels=labels).loss * count, count


def all_answers_are_trained_like_transformers_labels(
    world: World, folder: Path, engine: str
) -> None:
    place, tokenizer = model_folder(world, folder), tokenizer_in(world, folder)
    job = job_of(place, engine, "AllAnswers", "SFT")
    rows = [{"messages": messages_of(talk)} for talk in TALKS]
    metrics, weights = train(job, shard_of(job, rows, world, tokenizer), place, world)
    reference = plain(place, {})
    sums, counts = zip(*(cross_entropy(reference, talk, tokenizer) for talk in TALKS), strict=True)
    reference.step(torch.stack(sums).sum() / sum(counts))
    close(metrics["actor/loss"], reference.losses[0], "loss")
    close(metrics["actor/gradient_norm"], reference.norms[0], "gradient norm")
    assert metrics["actor/loss_tokens"] == sum(counts)
    expected = dict(reference.module.named_parameters())
    for name, found in weights.items():
        assert float((found - expected[name].detach()).abs().max()) < 1e-5, name
    # The same loss, as the mean of the last answers of all beginnings, weighted by their tokens.
    beginnings = [talk[: end + 1] for talk in TALKS for end in range(1, len(talk), 2)]
    last = job_of(place, engine, "LastAnswer", "SFT")
    rows = [{"messages": messages_of(talk)} for talk in beginnings]
    others, _ = train(last, shard_of(last, rows, world, tokenizer), place, world)
    for name in ("loss", "gradient_norm", "loss_tokens"):
        close(metrics[f"actor/{name}"], others[f"actor/{name}"], name)


def one_turn_is_the_same_to_the_bit(world: World, folder: Path, engine: str) -> None:
    place, tokenizer = model_folder(world, folder), tokenizer_in(world, folder)
    rows = [{"messages": messages_of(talk[:2])} for talk in TALKS]
    results = []
    for train_on in ("AllAnswers", "LastAnswer"):
        job = job_of(place, engine, train_on, "SFT")
        shard = shard_of(job, rows, world, tokenizer)
        assert ("response_mask" in shard.columns) == (train_on == "AllAnswers")
        results.append(train(job, shard, place, world))
    (metrics, weights), (others, other_weights) = results
    assert metrics == others
    assert all(torch.equal(weights[name], other_weights[name]) for name in other_weights)


def pairs_of_conversations_compare_their_answers(world: World, folder: Path, engine: str) -> None:
    place, tokenizer = model_folder(world, folder), tokenizer_in(world, folder)
    job = job_of(place, engine, "AllAnswers", "DPO")
    talks = (
        (("1+1=", "2", "and 2+2=?", "4, of course"), ("1+1=", "3", "are you sure?", "yes")),
        (("hi", "hello", "bye", "bye"), ("hi", "what?")),
    )
    rows = [
        {"chosen": messages_of(chosen), "rejected": messages_of(rejected)}
        for chosen, rejected in talks
    ]
    shard = shard_of(job, rows, world, tokenizer)
    responses = shard.columns["response_tokens"]
    numbers = np.random.default_rng(3).standard_normal(len(responses.values)).astype(np.float32)
    columns = {**shard.columns, "reference_log_probs": Column(numbers, responses.lengths)}
    metrics, weights = train(job, Shard(shard.index, columns), place, world)
    reference, margins = plain(place, {}), []
    given = iter(columns["reference_log_probs"].runs())
    for pair in talks:
        rewards = []
        for talk in pair:
            tokens, labels = labelled(talk, tokenizer)
            run, is_trained = next(given), labels[0] != -100
            log_probs = reference.module(input_ids=tokens).logits[0, :-1].log_softmax(-1)
            own = log_probs.gather(1, tokens[0, 1:, None])[:, 0][is_trained[1:]].sum()
            reference_sum = torch.tensor(run)[is_trained[len(is_trained) - len(run) :]].sum()
            rewards.append(0.1 * (own - reference_sum))
        margins.append(rewards[0] - rewards[1])
    reference.step(torch.log1p(torch.exp(-torch.stack(margins))).mean())
    close(metrics["actor/loss"], reference.losses[0], "loss")
    close(metrics["actor/gradient_norm"], reference.norms[0], "gradient norm")
    close(metrics["actor/margin"], float(torch.stack(margins).mean().detach()), "margin")


SCENARIOS: dict[str, Scenario] = {
    f"{name} ({engine})": partial(scenario, engine=engine)
    for engine in ENGINES
    for name, scenario in {
        "all answers are trained like transformers' labels": (
            all_answers_are_trained_like_transformers_labels
        ),
        "one turn is the same to the bit": one_turn_is_the_same_to_the_bit,
        "pairs of conversations compare their answers": (
            pairs_of_conversations_compare_their_answers
        ),
    }.items()
}
