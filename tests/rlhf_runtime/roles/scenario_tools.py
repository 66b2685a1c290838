"""What scenarios of roles and operations share: models, their plain counterparts, comparisons."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from transformers import AutoModelForCausalLM

from rlhf_api.spec.job import RLHFJob
from rlhf_api.spec.models import LearningRateDecay
from rlhf_flow.step.calls import ModelCall, TrainOptions
from rlhf_flow.step.losses import Loss
from rlhf_runtime.calls.reports import merge_statistics
from rlhf_runtime.dataplane.columns import Column
from rlhf_runtime.engines.optimizer_settings import OptimizerSettings
from rlhf_runtime.engines.training import TrainingEngine
from rlhf_runtime.engines.world import World
from rlhf_runtime.roles import language_model
from rlhf_runtime.roles.context import Result
from rlhf_runtime.roles.language_model import LanguageModelRole

from ..engines.tiny_models import write_model
from ..engines.whole_weights import gathered_weights
from .plain_losses import Plain
from .small_batch import GROUPS, MAX_RESPONSE, NUM_ROWS, context_of, make_batch, masked

TEMPERATURE = 0.7
ROUNDING = 5e-6
"""How far weights may be apart after an update whose gradients differ by rounding: half a per cent
of the learning rate. How batches of other shapes are rounded depends on the processor."""
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
MASKS = {"": False, ", masked": True}
"""Whether the batch has a response mask, by the end of a scenario's name."""


class NoGeneration:
    """Stands for vLLM, which these scenarios do not need."""

    methods: Mapping[str, Any] = {}

    def __init__(self, context: object, model: object) -> None:
        pass


def model_folder(world: World, folder: Path) -> Path:
    place = folder / "model"
    if world.rank == 0:
        write_model("llama", place)
    dist.barrier()
    return place


def make_policy(job: RLHFJob, folder: Path, world: World) -> LanguageModelRole:
    setattr(language_model, "Generation", NoGeneration)  # noqa: B010
    policy = LanguageModelRole(context_of(job, "actor", folder, world))
    policy.engine.use_optimizer(OPTIMIZER)
    return policy


def plain(folder: Path, columns: Mapping[str, Column], value_head: bool = False) -> Plain:
    module = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    if value_head:
        module.lm_head = nn.Linear(module.config.hidden_size, 1, bias=False)
        nn.init.zeros_(module.lm_head.weight)
    return Plain(module, columns, TEMPERATURE, MAX_RESPONSE, OPTIMIZER)


def loss_of(call: ModelCall) -> Loss:
    assert isinstance(call.options, TrainOptions)
    return call.options.loss


def reading_mask(call: ModelCall) -> ModelCall:
    """As the flow makes the call with a batch that has a response mask."""
    return replace(call, reads=tuple(sorted((*call.reads, "response_mask"))))


def batch_for(call: ModelCall, has_mask: bool) -> tuple[ModelCall, dict[str, Column]]:
    """The call with its batch, without or with a response mask."""
    if not has_mask:
        return call, make_batch()
    return reading_mask(call), masked(make_batch())


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
    return merge_statistics(everyone)


def whole(result: Result, world: World, keep_groups: bool = True) -> dict[str, list[np.ndarray]]:
    """The columns of all ranks in the order of their rows; with `keep_groups` each group must
    lie on one rank."""
    assert result.index is not None
    everyone: list[Any] = [None] * world.size
    dist.all_gather_object(everyone, (result.index, dict(result.columns)))
    held = [set(index.groups.tolist()) for index, _ in everyone]
    if keep_groups:
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


def own_tokens(columns: Mapping[str, Column], row: int) -> np.ndarray:
    """Which tokens of a row's response count."""
    if "response_mask" in columns:
        return np.asarray(columns["response_mask"].runs()[row] == 1)
    return np.ones(len(columns["response_tokens"].runs()[row]), dtype=bool)


def close(got: float, expected: float, what: str) -> None:
    assert abs(got - expected) < 2e-5 * max(1.0, abs(expected)), (what, got, expected)


def parameters_of(model: TrainingEngine) -> dict[str, torch.Tensor]:
    """Whole ones, gathered from all ranks, which are one mesh."""
    return gathered_weights(model.master_views(), dist.group.WORLD)


def assert_trained_like(model: TrainingEngine, reference: Plain) -> None:
    expected = dict(reference.module.named_parameters())
    for name, full in parameters_of(model).items():
        difference = float((full - expected[name].detach()).abs().max())
        assert difference < 1e-5, (name, difference)
