"""Scenarios of fewer rows than ranks: every loss and the inference before it, by the formula."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch

from rlhf_api.calls import CallKind
from rlhf_api.spec.policy_loss import KlEstimator
from rlhf_flow.step.calls import ModelCall, TrainOptions
from rlhf_flow.step.column_settings import columns_read_by
from rlhf_flow.step.losses import BradleyTerry, ClippedLoss, CrossEntropy, Dpo, Loss, ValueLoss
from rlhf_runtime.engines.world import World
from rlhf_runtime.roles.context import Result
from rlhf_runtime.roles.scalar_model import ScalarModelRole

from ..world_of_processes import Scenario
from .few_rows import BATCHES, inputs_of, runs_of
from .plain_training import OLD, is_scalar, role_of, train_plainly
from .scenario_tools import (
    OPTIMIZER,
    assert_trained_like,
    make_policy,
    metrics_of,
    model_folder,
    plain,
)
from .small_batch import context_of, make_job, model_of


def a_rank_without_rows_takes_part(world: World, folder: Path, loss: Loss, name: str) -> None:
    """It runs as many forward passes as the others, and trains the same weights."""
    model, batch = model_folder(world, folder), BATCHES[name]
    columns, role = batch.columns, role_of(loss)
    job = make_job(
        model,
        algorithm={"type": "PPO"},
        models={"actor": model_of(model), "critic": model_of(model)},
    )
    made = (
        ScalarModelRole(context_of(job, role, model, world))
        if is_scalar(loss)
        else make_policy(job, model, world)
    )
    made.engine.use_optimizer(OPTIMIZER)
    reference = plain(model, columns, value_head=is_scalar(loss))
    sequences = ("prompt_tokens", "response_tokens")
    infer = ModelCall("infer", role, "infer", CallKind.INFER, sequences, ("made",))
    inputs = inputs_of(batch, columns, infer, world.rank, world.size)
    unmasked = {name: column for name, column in columns.items() if name != "response_mask"}
    read = replace(reference, columns=unmasked)
    with torch.no_grad():
        if isinstance(made, ScalarModelRole):
            assert_read(made.values(inputs), lambda row: read.outputs(row)[:, 0])
        else:
            assert_read(made.log_probs(inputs), read.log_probs)
    count = 1 if isinstance(loss, CrossEntropy) else 2  # the second is of no rows at all
    check = train_plainly(reference, batch, count, loss)
    call = replace(
        infer,
        kind=CallKind.TRAIN,
        reads=tuple(sorted(columns_read_by(loss, columns))),
        writes=(),
        options=TrainOptions(loss),
    )
    result = made.train(inputs_of(batch, columns, call, world.rank, world.size, count))
    check(metrics_of(result, world))
    assert_trained_like(made.engine, reference)


def assert_read(result: Result, expected: Callable[[int], torch.Tensor]) -> None:
    """That this rank has read its rows."""
    assert result.index is not None
    runs = runs_of(result.columns["made"])
    for row, run in zip(result.index.rows.tolist(), runs, strict=True):
        assert np.allclose(run, expected(row).numpy(), atol=1e-5)


LOSSES: dict[str, tuple[Loss, str]] = {
    "policy": (
        ClippedLoss(
            "reward_valid",
            old_log_probs=OLD,
            kl_coefficient=0.2,
            kl_estimator=KlEstimator.K3,
            reference_log_probs="reference_log_probs",
        ),
        "one row",
    ),
    "policy, one token": (ClippedLoss("reward_valid", old_log_probs=OLD), "one token"),
    "policy, nothing counts": (
        ClippedLoss("reward_valid", old_log_probs=OLD, entropy_coefficient=0.1),
        "one row, masked",
    ),
    "values": (ValueLoss("reward_valid", "critic_values", clip_range=0.2), "one row"),
    "cross entropy": (CrossEntropy(), "one row"),
    "DPO": (Dpo("reference_log_probs"), "one prompt"),
    "pairs": (BradleyTerry(), "one prompt"),
}
"""With a batch: pairs are of a prompt, whose rows are on one rank."""
SCENARIOS: dict[str, Scenario] = {
    f"a rank without rows takes part ({name})": partial(
        a_rank_without_rows_takes_part, loss=loss, name=batch
    )
    for name, (loss, batch) in LOSSES.items()
}
