"""Scenarios of log-probabilities, of the policy and of its reference."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from rlhf_runtime.engines.world import World
from rlhf_runtime.roles.context import Result
from rlhf_runtime.roles.language_model import LanguageModelRole

from ..world_of_processes import Scenario
from .scenario_tools import make_policy, model_folder, plain, whole
from .small_batch import NUM_ROWS, call_of, context_of, inputs_of, make_batch, make_job


def inference_is_that_of_the_model(world: World, folder: Path) -> None:
    place, columns = model_folder(world, folder), make_batch()
    job = make_job(
        place,
        algorithm={"type": "PPO", "ppo": {"klCoefficient": 0.1, "epochsPerBatch": 2}},
    )
    reference = plain(place, columns)
    actor = make_policy(job, place, world)
    frozen = LanguageModelRole(context_of(job, "reference", place, world))
    with torch.no_grad():
        expected = [reference.log_probs(row).numpy() for row in range(NUM_ROWS)]
    asked: dict[str, Callable[..., Result]] = {
        "actor.log_probs": actor.log_probs,
        "reference.log_probs": frozen.log_probs,
    }
    for call_id, method in asked.items():
        call = call_of(job, world, call_id)
        result = method(inputs_of(call, columns, world))
        found = whole(result, world, keep_groups=False)
        (field,) = call.writes
        assert field == f"{call.role}_log_probs"
        for got, want in zip(found[field], expected, strict=True):
            assert float(np.abs(got - want).max()) < 1e-5


SCENARIOS: dict[str, Scenario] = {
    "inference is that of the model": inference_is_that_of_the_model,
}
