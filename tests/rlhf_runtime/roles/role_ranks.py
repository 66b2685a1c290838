"""Scenarios of roles and operations, for test_roles: run on one rank or on two.

Run as `python -m tests.rlhf_runtime.roles.role_ranks RANK WORLD_SIZE FOLDER`. Oracles see the whole
batch at once, row by row.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

from rlhf_api.spec.job import RLHFJob
from rlhf_api.spec.models import LearningRateDecay
from rlhf_api.spec.policy_loss import PolicyObjective
from rlhf_flow.calls import ComputeOptions, ModelCall, TrainOptions
from rlhf_flow.losses import BradleyTerry, ClippedLoss, CrossEntropy, Dpo, Loss, ValueLoss
from rlhf_flow.operations import (
    BestAgainstWorst,
    Custom,
    LagrangeMultiplier,
    PairLines,
    Scope,
    WeightedSum,
)
from rlhf_runtime.dataplane.columns import Column, pack_texts
from rlhf_runtime.engines.fsdp.model import FsdpModel
from rlhf_runtime.engines.fsdp.packing import MicroBatch
from rlhf_runtime.engines.fsdp.settings import OptimizerSettings
from rlhf_runtime.engines.world import World
from rlhf_runtime.roles import language_model
from rlhf_runtime.roles.context import Result
from rlhf_runtime.roles.language_model import LanguageModel
from rlhf_runtime.roles.operations import compute
from rlhf_runtime.roles.scalar_model import ScalarModel
from rlhf_runtime.workers.orders import merge

from ..engines.tiny_models import ragged, write_classifier, write_model
from ..meshes import parallel_of
from ..world_of_processes import Scenario, run_scenarios
from .plain_losses import Plain
from .small_batch import (
    GROUPS,
    MAX_RESPONSE,
    NUM_ROWS,
    call_of,
    context_of,
    inputs_of,
    make_batch,
    make_job,
    model_of,
)

TEMPERATURE = 0.7
OPTIMIZER = OptimizerSettings(
    learning_rate=1e-3,
    beta1=0.9,
    beta2=0.95,
    epsilon=1e-5,  # keeps gradients that are zero but for rounding from mattering
    weight_decay=0.01,
    gradient_clip=0.5,
    decay=LearningRateDecay.NONE,
    warmup_updates=0,
    total_updates=100,
)


class NoGeneration:
    """Stands for vLLM, which these scenarios do not need."""

    def __init__(self, context: object, model: object) -> None:
        pass


def model_folder(world: World, folder: Path) -> Path:
    place = folder / "model"
    if world.rank == 0:
        write_model("llama", place)
    dist.barrier()
    return place


def make_policy(job: RLHFJob, folder: Path, world: World) -> LanguageModel:
    setattr(language_model, "Generation", NoGeneration)  # noqa: B010
    policy = LanguageModel(context_of(job, "actor", folder, world))
    policy.use_optimizer(OPTIMIZER)
    return policy


def plain(folder: Path, columns: Mapping[str, Column], value_head: bool = False) -> Plain:
    module = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    if value_head:
        module.lm_head = nn.Linear(module.config.hidden_size, 1, bias=False)
        nn.init.zeros_(module.lm_head.weight)
    return Plain(module, columns, TEMPERATURE, MAX_RESPONSE, OPTIMIZER)


def mini_batches(count: int) -> list[list[int]]:
    """Rows that count, in so many mini-batches: of every n-th prompt."""
    valid = make_batch()["reward_valid"].values
    return [
        [row for row in range(NUM_ROWS) if valid[row] and GROUPS[row] % count == number]
        for number in range(count)
    ]


def metrics_of(result: Result, world: World) -> dict[str, float]:
    everyone = [result.statistics] * world.size
    dist.all_gather_object(everyone, result.statistics)
    return merge(everyone)


def close(got: float, expected: float, what: str) -> None:
    assert abs(got - expected) < 2e-5 * max(1.0, abs(expected)), (what, got, expected)


def parameters_of(model: FsdpModel) -> dict[str, torch.Tensor]:
    """Whole ones, gathered from all ranks."""
    return {
        name: (each.full_tensor() if hasattr(each, "full_tensor") else each).detach()
        for name, each in model.module.named_parameters()
    }


def assert_trained_like(model: FsdpModel, reference: Plain) -> None:
    expected = dict(reference.module.named_parameters())
    for name, full in parameters_of(model).items():
        difference = float((full - expected[name].detach()).abs().max())
        assert difference < 1e-5, (name, difference)


def loss_of(call: ModelCall) -> Loss:
    assert isinstance(call.options, TrainOptions)
    return call.options.loss


def policy_trains_by_the_formula(world: World, folder: Path, settings: dict[str, Any]) -> None:
    """Two mini-batches, every epoch; rows without a valid score count nowhere."""
    place, columns = model_folder(world, folder), make_batch()
    job = make_job(
        place,
        algorithm={"type": "GRPO", "grpo": settings},
        schedule={"steps": 10, "promptsPerStep": 4, "miniBatchPrompts": 3},
    )
    call = call_of(job, world, "actor.train")
    policy = make_policy(job, place, world)
    metrics = metrics_of(policy.train(inputs_of(call, columns, world, mini_batches=2)), world)
    reference = plain(place, columns)
    loss = loss_of(call)
    assert isinstance(loss, ClippedLoss)
    assert "actor_log_probs" in call.reads, "there are several updates"
    with_reference = "reference_log_probs" in call.reads
    assert with_reference == (loss.kl_coefficient > 0)
    losses = reference.policy_losses(loss, "actor_log_probs", with_reference)
    notes = Notes(reference, loss, with_reference)
    for _ in range(loss.epochs_per_batch):
        for counted in mini_batches(2):
            rows = [row for row in counted if reference.agrees(row, loss.rejection_threshold)]
            notes.take(rows)
            reference.update(rows, losses, loss.aggregation)
    notes.compare(metrics)
    close(metrics["actor/loss"], float(np.mean(reference.losses)), "loss")
    close(metrics["actor/gradient_norm"], float(np.mean(reference.norms)), "gradient norm")
    close(metrics["actor/learning_rate"], OPTIMIZER.learning_rate, "learning rate")
    assert_trained_like(policy.model, reference)
    assert policy.model.version == len(reference.losses)


def trained_with(
    world: World, place: Path, settings: dict[str, Any], **training: Any
) -> tuple[LanguageModel, dict[str, float]]:
    """A policy after two mini-batches, and its metrics."""
    job = make_job(
        place,
        algorithm={"type": "GRPO", "grpo": settings},
        models={"actor": model_of(place, **training)},
        schedule={"steps": 10, "promptsPerStep": 4, "miniBatchPrompts": 3},
    )
    policy = make_policy(job, place, world)
    call = call_of(job, world, "actor.train")
    result = policy.train(inputs_of(call, make_batch(), world, mini_batches=2))
    return policy, metrics_of(result, world)


def micro_batches_change_nothing(world: World, folder: Path, settings: dict[str, Any]) -> None:
    """One micro-batch of everything, or one for every row or prompt: the same to rounding."""
    place = model_folder(world, folder)
    whole, expected = trained_with(world, place, settings, microBatchTokens=4096)
    cut, found = trained_with(world, place, settings, microBatchTokens=8)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert abs(found[name] - value) <= 2e-6 * max(1.0, abs(value)), (name, found[name], value)
    of_cut = parameters_of(cut.model)
    for name, parameter in parameters_of(whole.model).items():
        assert torch.allclose(parameter, of_cut[name], rtol=0, atol=1e-6), name


def bfloat16_trains_nearly_as_float32(world: World, folder: Path) -> None:
    """Weights stay float32; activations and gradients are rounded, so that an update differs by
    some per cent."""
    place = model_folder(world, folder)
    settings = {"klCoefficient": 0.1}
    exact, expected = trained_with(world, place, settings)
    rounded, found = trained_with(world, place, settings, precision="bfloat16")
    for name in ("actor/loss", "actor/gradient_norm", "actor/entropy"):
        assert abs(found[name] - expected[name]) < 0.05 * abs(expected[name]) + 0.02, name
    module = AutoModelForCausalLM.from_pretrained(place, dtype=torch.float32)
    moves = []
    for policy in (exact, rounded):
        trained = parameters_of(policy.model)
        assert {each.dtype for each in trained.values()} == {torch.float32}
        moved = [trained[name] - each.detach() for name, each in module.named_parameters()]
        moves.append(torch.cat([each.flatten() for each in moved]).double())
    assert float(moves[0] @ moves[1] / (moves[0].norm() * moves[1].norm())) > 0.98


class Notes:
    """Means over the tokens that count, of every update."""

    def __init__(self, reference: Plain, loss: ClippedLoss, with_reference: bool) -> None:
        self._reference, self._loss, self._with_reference = reference, loss, with_reference
        self._values: dict[str, list[torch.Tensor]] = {}
        self._largest: list[float] = []

    @torch.no_grad()
    def take(self, rows: list[int]) -> None:
        at, loss = self._reference, self._loss
        for row in rows:
            advantages = at.row("advantages", row)
            ratios = at.ratios(row, loss, "actor_log_probs")
            is_cispo = loss.objective is PolicyObjective.CISPO
            over = ((advantages > 0) | is_cispo) & (ratios > 1 + loss.clip_range_high)
            under = ((advantages < 0) | is_cispo) & (ratios < 1 - loss.clip_range)
            dual = (
                torch.zeros_like(over)
                if loss.dual_clip is None
                else (advantages < 0) & (ratios > loss.dual_clip)
            )
            self._add("actor/clip_fraction", (over | under | dual).float())
            self._add("actor/clip_fraction_low", under.float())
            self._add("actor/clip_fraction_high", over.float())
            self._largest.append(float(ratios.max()))
            mismatch = at.row("rollout_log_probs", row) - at.row("actor_log_probs", row)
            self._add("actor/mismatch_kl", (-mismatch).exp() - 1 + mismatch)
            self._add("actor/entropy", at.entropy(row))
            difference = (at.row("actor_log_probs", row) - at.row("rollout_log_probs", row)).abs()
            self._add("actor/log_prob_difference_mean", difference)
            if self._with_reference:
                self._add("actor/kl", at.kl(row, loss.kl_estimator))

    def _add(self, name: str, values: torch.Tensor) -> None:
        self._values.setdefault(name, []).append(values)

    def compare(self, metrics: Mapping[str, float]) -> None:
        assert ("actor/kl" in metrics) == self._with_reference
        close(metrics["actor/ratio_max"], max(self._largest), "ratio")
        for name, values in self._values.items():
            close(metrics[name], float(torch.cat(values).double().mean()), name)


def a_single_update_needs_no_old_log_probs(world: World, folder: Path) -> None:
    place, columns = model_folder(world, folder), make_batch()
    job = make_job(place)
    call = call_of(job, world, "actor.train")
    assert "actor_log_probs" not in call.reads
    policy = make_policy(job, place, world)
    metrics = metrics_of(policy.train(inputs_of(call, columns, world)), world)
    reference = plain(place, columns)
    loss = ClippedLoss("reward_valid")
    (rows,) = mini_batches(1)
    update = reference.policy_losses(loss, "rollout_log_probs", False)
    reference.update(rows, update, loss.aggregation)
    close(metrics["actor/loss"], reference.losses[0], "loss")
    assert_trained_like(policy.model, reference)


def rows_without_signal_change_nothing(world: World, folder: Path) -> None:
    """Advantages of zero: an update all the same, of weight decay alone."""
    place, columns = model_folder(world, folder), make_batch()
    lengths = columns["advantages"].lengths
    zeros = np.zeros_like(columns["advantages"].values)
    columns["advantages"] = Column(zeros, lengths)
    job = make_job(place)
    policy = make_policy(job, place, world)
    call = call_of(job, world, "actor.train")
    metrics = metrics_of(policy.train(inputs_of(call, columns, world)), world)
    assert metrics["actor/gradient_norm"] == 0 and metrics["actor/loss"] == 0
    assert metrics["actor/entropy"] > 1 and policy.model.version == 1
    reference = plain(place, columns)
    (rows,) = mini_batches(1)
    losses = reference.policy_losses(ClippedLoss("reward_valid"), "rollout_log_probs", False)
    reference.update(rows, losses, ClippedLoss("reward_valid").aggregation)
    assert_trained_like(policy.model, reference)


def warm_start_is_plain_cross_entropy(world: World, folder: Path) -> None:
    place, columns = model_folder(world, folder), make_batch()
    job = make_job(place)
    step = call_of(job, world, "actor.train")
    call = ModelCall(
        id="actor.train",
        role="actor",
        method="train",
        kind=step.kind,
        reads=("prompt_tokens", "response_tokens"),
        writes=(),
        options=TrainOptions(CrossEntropy()),
    )
    policy = make_policy(job, place, world)
    reference = plain(place, columns)
    for _ in range(2):
        metrics = metrics_of(policy.train(inputs_of(call, columns, world)), world)
        reference.update(
            range(NUM_ROWS), reference.supervised_losses, ClippedLoss("reward_valid").aggregation
        )
        close(metrics["actor/loss"], reference.losses[-1], "loss")
        close(metrics["actor/gradient_norm"], reference.norms[-1], "gradient norm")
    assert_trained_like(policy.model, reference)


def pretraining_is_added_to_the_policys_loss(world: World, folder: Path) -> None:
    """Two mini-batches of both, twice: every second row of the texts beside every second prompt."""
    place, columns = model_folder(world, folder), make_batch()
    settings = {"epochsPerBatch": 2}
    job = make_job(
        place,
        algorithm={"type": "GRPO", "grpo": settings},
        schedule={"steps": 10, "promptsPerStep": 4, "miniBatchPrompts": 2},
    )
    texts = {"prompt_tokens": ragged([1] * 5, 7), "response_tokens": ragged([3, 9, 1, 12, 6], 8)}
    call = call_of(job, world, "actor.train")
    loss, supervised = loss_of(call), CrossEntropy(weight=0.3)
    assert isinstance(loss, ClippedLoss)
    call = replace(
        call, options=TrainOptions(loss, 0, (supervised,)), auxiliary_reads=(tuple(texts),)
    )
    policy = make_policy(job, place, world)
    metrics = metrics_of(policy.train(inputs_of(call, columns, world, 1, 2, texts)), world)
    reference = plain(place, columns)
    other = replace(reference, columns=texts)
    losses = reference.policy_losses(loss, "actor_log_probs", False)
    policy_losses, entropies = [], []
    for _ in range(2):
        for number, rows in enumerate(mini_batches(2)):
            own = torch.cat([losses(row) for row in rows]).mean()
            beside = torch.cat([other.supervised_losses(row) for row in range(number, 5, 2)]).mean()
            policy_losses.append(float(own))
            entropies.append(float(beside))
            reference.step(own + 0.3 * beside)
    close(metrics["actor/loss"], float(np.mean(policy_losses)), "loss")
    close(metrics["actor/cross_entropy"], float(np.mean(entropies)), "cross entropy")
    close(metrics["actor/gradient_norm"], float(np.mean(reference.norms)), "gradient norm")
    assert_trained_like(policy.model, reference)


def the_actor_waits_for_the_critic(world: World, folder: Path) -> None:
    place, columns = model_folder(world, folder), make_batch()
    job = make_job(place, algorithm={"type": "PPO", "ppo": {"criticWarmupSteps": 2}})
    call = call_of(job, world, "actor.train")
    policy = make_policy(job, place, world)
    for step, version in ((1, 0), (2, 0), (3, 1)):
        policy.train(inputs_of(call, columns, world, step))
        assert policy.model.version == version


def critic_trains_by_the_formula(world: World, folder: Path, settings: dict[str, Any]) -> None:
    place, columns = model_folder(world, folder), make_batch()
    job = make_job(
        place,
        algorithm={"type": "PPO", "ppo": settings},
        models={"actor": model_of(place), "critic": model_of(place)},
        schedule={"steps": 10, "promptsPerStep": 4, "miniBatchPrompts": 3},
    )
    context = context_of(job, "critic", place, world)
    critic = ScalarModel(context)
    critic.use_optimizer(OPTIMIZER)
    call = call_of(job, world, "critic.train")
    values = critic.values(inputs_of(call_of(job, world, "critic.values"), columns, world))
    assert (values.columns["critic_values"].values == 0).all()
    metrics = metrics_of(critic.train(inputs_of(call, columns, world, mini_batches=2)), world)
    reference = plain(place, columns, value_head=True)
    loss = loss_of(call)
    assert isinstance(loss, ValueLoss)
    for _ in range(loss.epochs_per_batch):
        for rows in mini_batches(2):
            reference.update(rows, reference.value_losses(loss), loss.aggregation)
    close(metrics["critic/loss"], float(np.mean(reference.losses)), "loss")
    close(metrics["critic/gradient_norm"], float(np.mean(reference.norms)), "gradient norm")
    assert_trained_like(critic.model, reference)


PREFERENCE = np.array([1, -1, -1, 1, -1, 0, -1, 1, 1, 1, 1, 1], dtype=np.int8)
"""Two pairs, one, two, and none."""


def pairs_in(groups: tuple[int, ...]) -> list[tuple[int, int]]:
    """Every chosen with every rejected row of these prompts."""
    return [
        (one, other)
        for one, other in np.ndindex(NUM_ROWS, NUM_ROWS)
        if GROUPS[one] == GROUPS[other] in groups
        if (PREFERENCE[one], PREFERENCE[other]) == (1, -1)
    ]


def dpo_trains_by_the_formula(
    world: World, folder: Path, settings: dict[str, Any], shares: bool
) -> None:
    """Some prompts have several pairs, one has none, and rows are in no pair; no pair is torn
    apart, however little fits."""
    place, columns = model_folder(world, folder), make_batch()
    columns["preference"] = Column(PREFERENCE)
    actor = {"source": {"path": str(place)}, "training": {"microBatchTokens": 4}}
    job = make_job(place, models={"actor": actor})
    loss = Dpo("reference_log_probs", **settings)
    call = replace(
        call_of(job, world, "actor.train"),
        reads=tuple(sorted(loss.reads)),
        options=TrainOptions(loss),
    )
    assert "rollout_log_probs" not in call.reads and call.compares_responses
    policy = make_policy(job, place, world)
    policy.model._shares_prompts &= shares
    seen = noted_rows(policy.model)
    metrics = metrics_of(policy.train(inputs_of(call, columns, world, mini_batches=2)), world)
    reference = plain(place, columns)
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
    assert_trained_like(policy.model, reference)
    assert policy.model.version == len(reference.losses)
    own = torch.tensor([sum(seen)])
    dist.all_reduce(own)
    assert int(own) == 8 * loss.epochs_per_batch, "rows in no pair are not run"


def noted_rows(model: FsdpModel) -> list[int]:
    """Gets the responses of every forward pass from now on."""
    seen: list[int] = []
    plain_outputs = model.outputs

    def outputs(part: MicroBatch) -> torch.Tensor:
        seen.append(len(part.rows))
        return plain_outputs(part)

    setattr(model, "outputs", outputs)  # noqa: B010
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
    assert_trained_like(policy.model, reference)


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


def reward_model_trains_by_the_formula(world: World, folder: Path) -> None:
    """Some prompts have several pairs, one has none; no pair is torn between ranks or
    micro-batches, whatever fits."""
    place, columns = model_folder(world, folder), make_batch()
    columns["preference"] = Column(PREFERENCE)
    job = make_job(
        place,
        algorithm={"type": "PPO"},
        models={"actor": model_of(place), "critic": model_of(place)},
        schedule={"steps": 10, "promptsPerStep": 4, "miniBatchPrompts": 3},
    )
    loss = BradleyTerry(epochs_per_batch=2)
    call = replace(
        call_of(job, world, "critic.train"),
        reads=tuple(sorted(loss.reads)),
        options=TrainOptions(loss),
    )
    scorer = ScalarModel(context_of(job, "critic", place, world))
    scorer.use_optimizer(OPTIMIZER)
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
    assert_trained_like(scorer.model, reference)


def classifier_folder(world: World, folder: Path) -> Path:
    """A reward model whose numbers are no smaller than one."""
    place = folder / "classifier"
    if world.rank == 0:
        write_classifier("llama", place)
    dist.barrier()
    return place


def a_reward_model_scores_as_transformers_does(
    world: World, folder: Path, precision: str, tolerance: float
) -> None:
    """Row by row, without padding; here rows share prompts and micro-batches."""
    place, columns = model_folder(world, folder), make_batch()
    given = classifier_folder(world, folder)
    model = {"path": str(given), "precision": precision, "microBatchTokens": 60}
    job = make_job(place, rewards=[{"name": "learned", "model": model}])
    scorer = ScalarModel(context_of(job, "learned_model", given, world))
    call = call_of(job, world, "learned_model.scores")
    result = scorer.scores(inputs_of(call, columns, world))
    found = np.concatenate(whole(result, world, whole_groups=False)["learned_model_scores"])
    reference = AutoModelForSequenceClassification.from_pretrained(given, dtype=torch.float32)
    runs = zip(columns["prompt_tokens"].runs(), columns["response_tokens"].runs(), strict=True)
    rows = [torch.tensor(np.concatenate(pair), dtype=torch.long)[None] for pair in runs]
    with torch.no_grad():
        expected = [float(reference.eval()(row).logits) for row in rows]
    assert np.std(expected) > 0.5
    assert np.allclose(found, expected, atol=tolerance), (found, expected)
    metric = metrics_of(result, world)["reward/learned"]
    assert abs(metric - float(np.mean(found))) < 1e-5


def scores_are_added_up(world: World, folder: Path) -> None:
    place, columns = model_folder(world, folder), make_batch()
    columns["learned_scores"] = Column(np.linspace(-2, 3, NUM_ROWS).astype(np.float32))
    valid = columns["reward_valid"].values.astype(bool)
    for counted, kept in (("reward_valid", valid), (None, np.ones_like(valid))):
        terms = {"reward_scores": 1.0, "learned_scores": -0.5}
        operation = WeightedSum(terms, scores="total_scores", valid="counts", counted=counted)
        call = replace(
            call_of(make_job(place), world, "compute"),
            reads=operation.reads,
            writes=operation.writes,
            options=ComputeOptions((operation,)),
        )
        result = compute(inputs_of(call, columns, world), parallel_of(world), {})
        found, metrics = whole(result, world), metrics_of(result, world)
        total = columns["reward_scores"].values - 0.5 * columns["learned_scores"].values
        assert np.allclose(np.concatenate(found["total_scores"]), np.where(kept, total, 0))
        assert np.concatenate(found["counts"]).astype(bool).tolist() == kept.tolist()
        close(metrics["total/mean"], float(total[kept].mean()), "mean")
        close(metrics["total/std"], float(total[kept].std()), "standard deviation")


def whole(result: Result, world: World, whole_groups: bool = True) -> dict[str, list[np.ndarray]]:
    """The columns of all ranks in the order of their rows; with `whole_groups` each group must lie
    on one rank."""
    assert result.index is not None
    everyone: list[Any] = [None] * world.size
    dist.all_gather_object(everyone, (result.index, dict(result.columns)))
    held = [set(index.groups.tolist()) for index, _ in everyone]
    if whole_groups:
        assert sum(map(len, held)) == len(set.union(*held)), "a group lies on several ranks"
    rows = np.concatenate([index.rows for index, _ in everyone])
    assert sorted(rows.tolist()) == list(range(NUM_ROWS))
    found: dict[str, list[np.ndarray]] = {}
    for name in result.columns:
        runs = [run for _, columns in everyone for run in runs_of(columns[name])]
        found[name] = [runs[position] for position in np.argsort(rows)]
    return found


def runs_of(column: Column) -> list[np.ndarray]:
    """Of each row; one value where the column has one for each."""
    return list(column.values[:, None]) if column.lengths is None else list(column.runs())


def inference_is_that_of_the_model(world: World, folder: Path) -> None:
    place, columns = model_folder(world, folder), make_batch()
    job = make_job(
        place,
        algorithm={"type": "PPO", "ppo": {"klCoefficient": 0.1, "epochsPerBatch": 2}},
    )
    reference = plain(place, columns)
    actor = make_policy(job, place, world)
    frozen = LanguageModel(context_of(job, "reference", place, world))
    with torch.no_grad():
        expected = [reference.log_probs(row).numpy() for row in range(NUM_ROWS)]
    asked: dict[str, Callable[..., Result]] = {
        "actor.log_probs": actor.log_probs,
        "reference.log_probs": frozen.log_probs,
    }
    for call_id, method in asked.items():
        call = call_of(job, world, call_id)
        result = method(inputs_of(call, columns, world))
        found = whole(result, world, whole_groups=False)
        (field,) = call.writes
        assert field == f"{call.role}_log_probs"
        for got, want in zip(found[field], expected, strict=True):
            assert float(np.abs(got - want).max()) < 1e-5


def advantages_compare_within_groups(world: World, folder: Path, by_std: bool) -> None:
    place, columns = model_folder(world, folder), make_batch()
    job = make_job(place, algorithm={"type": "GRPO", "grpo": {"normalizeByStd": by_std}})
    result = compute(
        inputs_of(call_of(job, world, "compute"), columns, world), parallel_of(world), {}
    )
    found = whole(result, world)["advantages"]
    scores, valid = columns["reward_scores"].values, columns["reward_valid"].values
    for row in range(NUM_ROWS):
        peers = [scores[r] for r in range(NUM_ROWS) if valid[r] and GROUPS[r] == GROUPS[row]]
        expected = float(scores[row]) - float(np.mean(peers)) if valid[row] else 0.0
        if by_std and valid[row]:
            expected /= float(np.std(peers, ddof=1)) + 1e-6
        assert len(found[row]) == len(columns["response_tokens"].runs()[row])
        assert np.allclose(found[row], expected, atol=1e-5), (row, found[row], expected)
    metrics = metrics_of(result, world)
    close(metrics["groups/equal"], 0.25, "one of four groups has equal scores")


def estimates_equal_the_sums(world: World, folder: Path) -> None:
    """KL in the rewards, generalized advantages as the sum that defines them, whitening over all
    ranks."""
    place, columns = model_folder(world, folder), make_batch()
    gamma, lam, coefficient = 0.9, 0.8, 0.3
    settings = {"klCoefficient": coefficient, "gamma": gamma, "gaeLambda": lam}
    job = make_job(place, algorithm={"type": "PPO", "ppo": settings})
    call = call_of(job, world, "compute")
    result = compute(inputs_of(call, columns, world), parallel_of(world), {})
    found = whole(result, world)
    returns, advantages, kl_sum = [], [], 0.0
    for row in range(NUM_ROWS):
        sampled = columns["rollout_log_probs"].runs()[row].astype(np.float64)
        kl = sampled - columns["reference_log_probs"].runs()[row].astype(np.float64)
        kl_sum += float(kl.sum())
        rewards = -coefficient * kl
        rewards[-1] += columns["reward_scores"].values[row]
        values = np.append(columns["critic_values"].runs()[row].astype(np.float64), 0.0)
        deltas = rewards + gamma * values[1:] - values[:-1]
        count = len(deltas)
        own = [
            sum((gamma * lam) ** (later - t) * deltas[later] for later in range(t, count))
            for t in range(count)
        ]
        advantages.append(np.array(own))
        returns.append(np.array(own) + values[:-1])
    valid = columns["reward_valid"].values.astype(bool)
    kept = np.concatenate([a for a, v in zip(advantages, valid, strict=True) if v])
    for row in range(NUM_ROWS):
        assert np.allclose(found["returns"][row], returns[row], atol=1e-5)
        whitened = (advantages[row] - kept.mean()) / kept.std(ddof=1)
        expected = whitened if valid[row] else np.zeros_like(whitened)
        assert np.allclose(found["advantages"][row], expected, atol=1e-5)
    total = sum(map(len, advantages))
    close(metrics_of(result, world)["reward/kl"], kl_sum / total, "mean KL")


def an_operation_may_see_all_rows(world: World, folder: Path) -> None:
    """Whatever the number of ranks: by its scope, beside operations that sum over ranks."""
    place, columns = model_folder(world, folder), make_batch()
    job = make_job(place, algorithm={"type": "PPO"})
    call = call_of(job, world, "compute")
    assert isinstance(call.options, ComputeOptions)
    entrypoint = "tests.rlhf_runtime.roles.role_ranks:ranked"
    rank = Custom(entrypoint, ["reward_scores"], ["ranks"], scope=Scope.BATCH)
    plain = compute(inputs_of(call, columns, world), parallel_of(world), {})
    call = replace(
        call,
        options=ComputeOptions((*call.options.operations, rank)),
        writes=tuple(sorted((*call.writes, "ranks"))),
    )
    result = compute(inputs_of(call, columns, world), parallel_of(world), {})
    found, without = whole(result, world), whole(plain, world)
    order = np.argsort(np.argsort(columns["reward_scores"].values, kind="stable"))
    assert [float(each[0]) for each in found["ranks"]] == order.tolist()
    for name in without:
        for one, other in zip(found[name], without[name], strict=True):
            assert np.allclose(one, other, atol=1e-6), name
    metrics = metrics_of(plain, world)
    assert metrics_of(result, world) == pytest.approx(metrics)


def ranked(columns: Mapping[str, Column]) -> dict[str, Column]:
    scores = columns["reward_scores"].values
    return {"ranks": Column(np.argsort(np.argsort(scores, kind="stable")).astype(np.float32))}


def a_multiplier_is_learned_from_all_costs(world: World, folder: Path) -> None:
    place, columns = model_folder(world, folder), make_batch()
    job = make_job(place)
    operation = LagrangeMultiplier("reward_scores", "reward_valid", limit=0.25)
    call = replace(
        call_of(job, world, "compute"),
        reads=operation.reads,
        writes=operation.writes,
        options=ComputeOptions((operation,)),
    )
    valid = columns["reward_valid"].values.astype(bool)
    cost = float(columns["reward_scores"].values[valid].mean())
    state: dict[str, torch.Tensor] = {}
    expected = 1.0
    for _ in range(3):
        result = compute(inputs_of(call, columns, world), parallel_of(world), state)
        expected *= float(np.exp(0.1 * expected * (cost - 0.25)))
        found = whole(result, world)["multiplier"]
        assert np.allclose(np.concatenate(found), expected, rtol=1e-6)
        close(metrics_of(result, world)["reward/multiplier"], expected, "multiplier")
        close(float(state["multiplier"]), expected, "what is kept")


GRPO_SETTINGS: dict[str, dict[str, Any]] = {
    "token mean": {"lossAggregation": "TokenMean"},
    "token sum": {"lossAggregation": "SequenceMeanTokenSum", "epochsPerBatch": 2},
    "sequence mean": {"lossAggregation": "SequenceMeanTokenMean", "klCoefficient": 0.2},
    "fixed length": {"lossAggregation": "SequenceMeanFixedLength", "clipRangeHigh": 0.4},
    "entropy bonus": {"entropyCoefficient": 0.1, "klCoefficient": 0.1, "klEstimator": "K3"},
    "dual clip, k2": {"dualClip": 1.5, "klCoefficient": 0.5, "klEstimator": "K2"},
    "GSPO": {"objective": "GSPO", "clipRange": 0.05, "epochsPerBatch": 2},
    "CISPO": {"objective": "CISPO", "clipRange": 0.3, "clipRangeHigh": 0.1, "epochsPerBatch": 2},
    "rejection": {"rejectionThreshold": 1.25, "lossAggregation": "SequenceMeanTokenMean"},
}
CRITIC_SETTINGS: dict[str, dict[str, Any]] = {
    "no clip": {},
    "clip": {"valueClipRange": 0.2, "epochsPerBatch": 2},
    "fixed length": {"lossAggregation": "SequenceMeanFixedLength"},
}
DPO_SETTINGS: dict[str, dict[str, Any]] = {
    "one epoch, shared prompts": {"beta": 0.1},
    "two epochs, a prompt each": {"beta": 0.5, "label_smoothing": 0.2, "epochs_per_batch": 2},
}
SCENARIOS: dict[str, Scenario] = {
    **{
        f"policy trains by the formula ({name})": partial(
            policy_trains_by_the_formula, settings=settings
        )
        for name, settings in GRPO_SETTINGS.items()
    },
    **{
        f"critic trains by the formula ({name})": partial(
            critic_trains_by_the_formula, settings=settings
        )
        for name, settings in CRITIC_SETTINGS.items()
    },
    **{
        f"micro-batches change nothing ({name})": partial(
            micro_batches_change_nothing, settings=settings
        )
        for name, settings in GRPO_SETTINGS.items()
    },
    "bfloat16 trains nearly as float32": bfloat16_trains_nearly_as_float32,
    "a single update needs no old log-probs": a_single_update_needs_no_old_log_probs,
    **{
        f"DPO trains by the formula ({name})": partial(
            dpo_trains_by_the_formula, settings=settings, shares=name.endswith("shared prompts")
        )
        for name, settings in DPO_SETTINGS.items()
    },
    "DPO without a pair changes nothing": dpo_without_a_pair_changes_nothing,
    "the best is preferred to the worst": the_best_is_preferred_to_the_worst,
    "pairs become lines": pairs_become_lines,
    "reward model trains by the formula": reward_model_trains_by_the_formula,
    "a reward model scores as transformers does": partial(
        a_reward_model_scores_as_transformers_does, precision="float32", tolerance=1e-5
    ),
    "a reward model scores in bfloat16": partial(
        a_reward_model_scores_as_transformers_does, precision="bfloat16", tolerance=0.1
    ),
    "scores are added up": scores_are_added_up,
    "rows without signal change nothing": rows_without_signal_change_nothing,
    "warm start is plain cross entropy": warm_start_is_plain_cross_entropy,
    "pretraining is added": pretraining_is_added_to_the_policys_loss,
    "the actor waits for the critic": the_actor_waits_for_the_critic,
    "inference is that of the model": inference_is_that_of_the_model,
    "advantages compare within groups": partial(advantages_compare_within_groups, by_std=True),
    "advantages without deviation": partial(advantages_compare_within_groups, by_std=False),
    "estimates equal the sums": estimates_equal_the_sums,
    "an operation may see all rows": an_operation_may_see_all_rows,
    "a multiplier is learned from all costs": a_multiplier_is_learned_from_all_costs,
}


if __name__ == "__main__":
    run_scenarios(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), SCENARIOS)
