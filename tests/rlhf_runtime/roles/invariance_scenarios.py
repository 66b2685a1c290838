"""Scenarios in which every loss trains twice: on the same numbers, otherwise computed."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch

from rlhf_api.spec.policy_loss import LossAggregation, PolicyObjective
from rlhf_flow.step.calls import TrainOptions
from rlhf_flow.step.losses import BradleyTerry, ClippedLoss, CrossEntropy, Dpo, Loss, ValueLoss
from rlhf_runtime.dataplane.columns import Column
from rlhf_runtime.engines.world import World
from rlhf_runtime.roles.scalar_model import ScalarModelRole

from ..world_of_processes import Scenario
from .scenario_tools import (
    OPTIMIZER,
    ROUNDING,
    make_policy,
    metrics_of,
    model_folder,
    parameters_of,
    reading_mask,
)
from .small_batch import (
    PREFERENCE,
    RESPONSE_LENGTHS,
    call_of,
    context_of,
    inputs_of,
    make_batch,
    make_job,
    model_of,
)

Trained = tuple[dict[str, torch.Tensor], dict[str, float]]
"""Whole weights and metrics of an update."""


def trained_by(
    world: World, place: Path, role: str, loss: Loss, has_mask: bool = False, tokens: int = 60
) -> Trained:
    """A role after a batch in two mini-batches.

    Args:
        has_mask: whether the batch has a response mask, of ones.
        tokens: of a micro-batch.
    """
    models = {name: model_of(place, microBatchTokens=tokens) for name in ("actor", "critic")}
    job = make_job(place, algorithm={"type": "PPO"}, models=models)
    columns = make_batch() | {"preference": Column(PREFERENCE)}
    lengths = columns["response_tokens"].lengths
    columns["response_mask"] = Column(np.ones(sum(RESPONSE_LENGTHS), dtype=np.int8), lengths)
    call = replace(
        call_of(job, world, f"{role}.train"),
        reads=tuple(sorted(loss.reads)),
        options=TrainOptions(loss),
    )
    made = (
        make_policy(job, place, world)
        if role == "actor"
        else ScalarModelRole(context_of(job, role, place, world))
    )
    made.engine.use_optimizer(OPTIMIZER)
    read = reading_mask(call) if has_mask else call
    metrics = metrics_of(made.train(inputs_of(read, columns, world, mini_batches=2)), world)
    return parameters_of(made.engine), metrics


def a_mask_of_ones_changes_nothing(world: World, folder: Path, role: str, loss: Loss) -> None:
    """Not a bit."""
    place = model_folder(world, folder)
    weights, metrics = trained_by(world, place, role, loss)
    found, same = trained_by(world, place, role, loss, has_mask=True)
    assert metrics == same
    assert all(torch.equal(weights[name], found[name]) for name in weights)


def micro_batches_change_no_loss(world: World, folder: Path, role: str, loss: Loss) -> None:
    """One of everything, or one for every row or pair: other packing, other padding."""
    place = model_folder(world, folder)
    weights, metrics = trained_by(world, place, role, loss, tokens=4096)
    found, same = trained_by(world, place, role, loss, tokens=1)
    assert same.keys() == metrics.keys()
    for name, value in metrics.items():
        assert abs(same[name] - value) <= ROUNDING * max(1.0, abs(value)), (name, same[name], value)
    for name, weight in weights.items():
        assert torch.allclose(weight, found[name], rtol=0, atol=ROUNDING), name


LOSSES: dict[str, tuple[str, Loss]] = {
    "policy": ("actor", ClippedLoss("reward_valid", objective=PolicyObjective.GSPO)),
    "rejection": (
        "actor",
        ClippedLoss("reward_valid", rejection_threshold=1.25, old_log_probs="actor_log_probs"),
    ),
    "cross entropy": ("actor", CrossEntropy()),
    "DPO": ("actor", Dpo("reference_log_probs")),
    "values": ("critic", ValueLoss("reward_valid", "critic_values", clip_range=0.2)),
}
MORE_LOSSES: dict[str, tuple[str, Loss]] = {
    "pairs": ("critic", BradleyTerry()),
    **{
        f"values, {each.value}": (
            "critic",
            ValueLoss("reward_valid", "critic_values", aggregation=each),
        )
        for each in LossAggregation
    },
}
"""Of which masks mean nothing, or nothing else than for those above."""
SCENARIOS: dict[str, Scenario] = {
    **{
        f"a mask of ones changes nothing ({name})": partial(
            a_mask_of_ones_changes_nothing, role=role, loss=loss
        )
        for name, (role, loss) in LOSSES.items()
    },
    **{
        f"micro-batches change no loss ({name})": partial(
            micro_batches_change_no_loss, role=role, loss=loss
        )
        for name, (role, loss) in (LOSSES | MORE_LOSSES).items()
    },
}
