"""Scenarios of policy losses: by the formula, however rows are cut and numbers rounded."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM

from rlhf_flow.step.losses import ClippedLoss
from rlhf_runtime.dataplane.columns import Column
from rlhf_runtime.engines.world import World
from rlhf_runtime.roles.language_model import LanguageModelRole

from ..world_of_processes import Scenario
from .policy_notes import Notes
from .scenario_tools import (
    MASKS,
    OPTIMIZER,
    ROUNDING,
    assert_trained_like,
    batch_for,
    close,
    loss_of,
    make_policy,
    metrics_of,
    mini_batches,
    model_folder,
    parameters_of,
    plain,
)
from .small_batch import call_of, inputs_of, make_batch, make_job, model_of


def policy_trains_by_the_formula(
    world: World, folder: Path, settings: dict[str, Any], has_mask: bool
) -> None:
    """Two mini-batches, every epoch; rows without a valid score count nowhere."""
    place = model_folder(world, folder)
    job = make_job(
        place,
        algorithm={"type": "GRPO", "grpo": settings},
        schedule={"steps": 10, "promptsPerStep": 4, "miniBatchPrompts": 3},
    )
    call, columns = batch_for(call_of(job, world, "actor.train"), has_mask)
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
    num_rejected = 0
    for _ in range(loss.epochs_per_batch):
        for counted in mini_batches(2):
            rows = [row for row in counted if reference.agrees(row, loss.rejection_threshold)]
            num_rejected += len(counted) - len(rows)
            notes.take(rows)
            reference.update(rows, losses, loss.aggregation)
    notes.compare(metrics)
    if loss.rejection_threshold is not None:
        assert num_rejected
        close(metrics["actor/rejected_sequences"], num_rejected / 9, "rejected of nine valid")
    close(metrics["actor/loss"], float(np.mean(reference.losses)), "loss")
    close(metrics["actor/gradient_norm"], float(np.mean(reference.norms)), "gradient norm")
    close(metrics["actor/learning_rate"], OPTIMIZER.learning_rate, "learning rate")
    assert_trained_like(policy.engine, reference)
    assert policy.engine.version == len(reference.losses)


def trained_with(
    world: World, place: Path, settings: dict[str, Any], has_mask: bool = False, **training: Any
) -> tuple[LanguageModelRole, dict[str, float]]:
    """A policy after two mini-batches, and its metrics."""
    job = make_job(
        place,
        algorithm={"type": "GRPO", "grpo": settings},
        models={"actor": model_of(place, **training)},
        schedule={"steps": 10, "promptsPerStep": 4, "miniBatchPrompts": 3},
    )
    policy = make_policy(job, place, world)
    call, columns = batch_for(call_of(job, world, "actor.train"), has_mask)
    result = policy.train(inputs_of(call, columns, world, mini_batches=2))
    return policy, metrics_of(result, world)


def micro_batches_change_nothing(world: World, folder: Path, settings: dict[str, Any]) -> None:
    """One micro-batch of everything, or one for every row or prompt, some without a token that
    counts: the same to rounding."""
    place = model_folder(world, folder)
    whole, expected = trained_with(world, place, settings, True, microBatchTokens=4096)
    cut, found = trained_with(world, place, settings, True, microBatchTokens=8)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert abs(found[name] - value) <= 5e-6 * max(1.0, abs(value)), (name, found[name], value)
    of_cut = parameters_of(cut.engine)
    for name, parameter in parameters_of(whole.engine).items():
        assert torch.allclose(parameter, of_cut[name], rtol=0, atol=ROUNDING), name


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
        trained = parameters_of(policy.engine)
        assert {each.dtype for each in trained.values()} == {torch.float32}
        moved = [trained[name] - each.detach() for name, each in module.named_parameters()]
        moves.append(torch.cat([each.flatten() for each in moved]).double())
    assert float(moves[0] @ moves[1] / (moves[0].norm() * moves[1].norm())) > 0.98


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
    assert_trained_like(policy.engine, reference)


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
    assert metrics["actor/entropy"] > 1 and policy.engine.version == 1
    reference = plain(place, columns)
    (rows,) = mini_batches(1)
    losses = reference.policy_losses(ClippedLoss("reward_valid"), "rollout_log_probs", False)
    reference.update(rows, losses, ClippedLoss("reward_valid").aggregation)
    assert_trained_like(policy.engine, reference)


def the_actor_waits_for_the_critic(world: World, folder: Path) -> None:
    place, columns = model_folder(world, folder), make_batch()
    job = make_job(place, algorithm={"type": "PPO", "ppo": {"criticWarmupSteps": 2}})
    call = call_of(job, world, "actor.train")
    policy = make_policy(job, place, world)
    for step, version in ((1, 0), (2, 0), (3, 1)):
        policy.train(inputs_of(call, columns, world, step))
        assert policy.engine.version == version


GRPO_SETTINGS: dict[str, dict[str, Any]] = {
    "token mean": {"lossAggregation": "TokenMean"},
    "token sum": {"lossAggregation": "SequenceMeanTokenSum", "epochsPerBatch": 2},
    "sequence mean": {"lossAggregation": "SequenceMeanTokenMean", "klCoefficient": 0.2},
    "fixed length": {"lossAggregation": "SequenceMeanFixedLength", "clipRangeHigh": 0.4},
    "entropy bonus": {"entropyCoefficient": 0.1, "klCoefficient": 0.1, "klEstimator": "K3"},
    "corrected kl": {"klCoefficient": 0.5, "klEstimator": "K3Corrected"},
    "dual clip, k2": {"dualClip": 1.5, "klCoefficient": 0.5, "klEstimator": "K2"},
    "GSPO": {"objective": "GSPO", "clipRange": 0.05, "epochsPerBatch": 2},
    "CISPO": {"objective": "CISPO", "clipRange": 0.3, "clipRangeHigh": 0.1, "epochsPerBatch": 2},
    "rejection": {"rejectionThreshold": 1.25, "lossAggregation": "SequenceMeanTokenMean"},
}
SCENARIOS: dict[str, Scenario] = {
    **{
        f"policy trains by the formula ({name}{end})": partial(
            policy_trains_by_the_formula, settings=settings, has_mask=has_mask
        )
        for name, settings in GRPO_SETTINGS.items()
        for end, has_mask in MASKS.items()
    },
    **{
        f"micro-batches change nothing ({name})": partial(
            micro_batches_change_nothing, settings=settings
        )
        for name, settings in GRPO_SETTINGS.items()
    },
    "bfloat16 trains nearly as float32": bfloat16_trains_nearly_as_float32,
    "a single update needs no old log-probs": a_single_update_needs_no_old_log_probs,
    "rows without signal change nothing": rows_without_signal_change_nothing,
    "the actor waits for the critic": the_actor_waits_for_the_critic,
}
