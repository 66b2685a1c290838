"""Scenarios of cross entropy: alone, and added to a policy's loss."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch

from rlhf_flow.step.calls import ModelCall, TrainOptions
from rlhf_flow.step.losses import ClippedLoss, CrossEntropy
from rlhf_runtime.dataplane.columns import Column
from rlhf_runtime.engines.world import World

from ..engines.tiny_models import ragged
from ..world_of_processes import Scenario
from .scenario_tools import (
    MASKS,
    assert_trained_like,
    batch_for,
    close,
    loss_of,
    make_policy,
    metrics_of,
    mini_batches,
    model_folder,
    plain,
)
from .small_batch import NUM_ROWS, call_of, inputs_of, make_batch, make_job


def warm_start_is_plain_cross_entropy(world: World, folder: Path, has_mask: bool) -> None:
    place = model_folder(world, folder)
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
    call, columns = batch_for(call, has_mask)
    policy = make_policy(job, place, world)
    reference = plain(place, columns)
    for _ in range(2):
        metrics = metrics_of(policy.train(inputs_of(call, columns, world)), world)
        reference.update(
            range(NUM_ROWS), reference.supervised_losses, ClippedLoss("reward_valid").aggregation
        )
        close(metrics["actor/loss"], reference.losses[-1], "loss")
        close(metrics["actor/gradient_norm"], reference.norms[-1], "gradient norm")
    assert_trained_like(policy.engine, reference)


def pretraining_is_added_to_the_policys_loss(world: World, folder: Path, has_mask: bool) -> None:
    """Two mini-batches of both, twice: every second row of the texts beside every second prompt. Of
    the texts alone some tokens may be left out."""
    place, columns = model_folder(world, folder), make_batch()
    settings = {"epochsPerBatch": 2}
    job = make_job(
        place,
        algorithm={"type": "GRPO", "grpo": settings},
        schedule={"steps": 10, "promptsPerStep": 4, "miniBatchPrompts": 2},
    )
    texts = {"prompt_tokens": ragged([1] * 5, 7), "response_tokens": ragged([3, 9, 1, 12, 6], 8)}
    if has_mask:
        flags = np.arange(31) % 4 != 1
        texts["response_mask"] = Column(flags, texts["response_tokens"].lengths)
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
    assert_trained_like(policy.engine, reference)


SCENARIOS: dict[str, Scenario] = {
    f"{name}{end}": partial(scenario, has_mask=has_mask)
    for end, has_mask in MASKS.items()
    for name, scenario in {
        "warm start is plain cross entropy": warm_start_is_plain_cross_entropy,
        "pretraining is added": pretraining_is_added_to_the_policys_loss,
    }.items()
}
