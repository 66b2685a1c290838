"""Scenarios of a critic and its losses."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from rlhf_flow.step.losses import ValueLoss
from rlhf_runtime.engines.world import World
from rlhf_runtime.roles.scalar_model import ScalarModelRole

from ..world_of_processes import Scenario
from .scenario_tools import (
    MASKS,
    OPTIMIZER,
    assert_trained_like,
    batch_for,
    close,
    loss_of,
    metrics_of,
    mini_batches,
    model_folder,
    plain,
)
from .small_batch import call_of, context_of, inputs_of, make_job, model_of


def critic_trains_by_the_formula(
    world: World, folder: Path, settings: dict[str, Any], has_mask: bool
) -> None:
    place = model_folder(world, folder)
    job = make_job(
        place,
        algorithm={"type": "PPO", "ppo": settings},
        models={"actor": model_of(place), "critic": model_of(place)},
        schedule={"steps": 10, "promptsPerStep": 4, "miniBatchPrompts": 3},
    )
    context = context_of(job, "critic", place, world)
    critic = ScalarModelRole(context)
    critic.engine.use_optimizer(OPTIMIZER)
    call, columns = batch_for(call_of(job, world, "critic.train"), has_mask)
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
    assert_trained_like(critic.engine, reference)


CRITIC_SETTINGS: dict[str, dict[str, Any]] = {
    "no clip": {},
    "clip": {"valueClipRange": 0.2, "epochsPerBatch": 2},
    "token sum": {"lossAggregation": "SequenceMeanTokenSum"},
    "sequence mean": {"lossAggregation": "SequenceMeanTokenMean"},
    "fixed length": {"lossAggregation": "SequenceMeanFixedLength"},
}
SCENARIOS: dict[str, Scenario] = {
    f"critic trains by the formula ({name}{end})": partial(
        critic_trains_by_the_formula, settings=settings, has_mask=has_mask
    )
    for name, settings in CRITIC_SETTINGS.items()
    for end, has_mask in MASKS.items()
}
