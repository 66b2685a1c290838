"""Losses where the model is on another device than the batch: nothing of both is put together, and
the host reads none of their numbers. A device without numbers shows both: it has none to give."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch

from rlhf_api.spec.policy_loss import KlEstimator, LossAggregation, PolicyObjective
from rlhf_flow.step.losses import BradleyTerry, ClippedLoss, CrossEntropy, Dpo, ValueLoss
from rlhf_runtime.dataplane.columns import Column
from rlhf_runtime.engines.packing import MicroBatch, Packing, pack_micro_batches
from rlhf_runtime.engines.parallel import ParallelContext
from rlhf_runtime.engines.training import Loss, TokenOutputs
from rlhf_runtime.numerics.losses import Denominators
from rlhf_runtime.roles.language_model import CrossEntropyLossFn
from rlhf_runtime.roles.metrics import MetricAccumulator
from rlhf_runtime.roles.mini_batches import LossMask, MiniBatch
from rlhf_runtime.roles.policy_loss_fn import PolicyLossFn
from rlhf_runtime.roles.preference_loss_fn import BradleyTerryLossFn, DpoLossFn
from rlhf_runtime.roles.scalar_model import ValueLossFn
from rlhf_sizing.costs import SequenceCost

from .small_batch import GROUPS, NUM_ROWS, make_batch, masked

PREFERENCE = np.array([1, 0, -1] * (NUM_ROWS // 3), dtype=np.int8)
ALONE = cast(ParallelContext, SimpleNamespace(sum=lambda values: values))


def policy(**settings: Any) -> Callable[[MiniBatch, MetricAccumulator], Loss]:
    loss = ClippedLoss("reward_valid", **settings)
    return lambda batch, metrics: PolicyLossFn(batch, loss, "actor", metrics)


TRUSTED = {"old_log_probs": "actor_log_probs", "rejection_threshold": 2.0, "dual_clip": 3.0}
WITH_KL = {
    "reference_log_probs": "reference_log_probs",
    "kl_coefficient": 0.1,
    "kl_estimator": KlEstimator.K3,
}
LOSSES: dict[str, Callable[[MiniBatch, MetricAccumulator], Loss]] = {
    **{
        f"{objective.value}, {mode.value}": policy(objective=objective, aggregation=mode)
        for objective in PolicyObjective
        for mode in LossAggregation
    },
    "old log-probs": policy(**TRUSTED),
    "reference and entropy": policy(**WITH_KL, entropy_coefficient=0.01),
    "cross-entropy": lambda batch, metrics: CrossEntropyLossFn(
        batch, CrossEntropy(), "loss", metrics
    ),
    "dpo": lambda batch, metrics: DpoLossFn(
        batch, Dpo("reference_log_probs"), ALONE, "actor", metrics
    ),
    "scores": lambda batch, metrics: BradleyTerryLossFn(
        batch, BradleyTerry(), ALONE, "reward", metrics
    ),
    "values": lambda batch, metrics: ValueLossFn(
        batch, ValueLoss("reward_valid", "critic_values"), "critic", metrics
    ),
}


def mini_batch(has_mask: bool) -> MiniBatch:
    columns = masked(make_batch()) if has_mask else make_batch()
    columns["preference"] = Column(PREFERENCE)
    lengths = columns["response_tokens"].lengths
    assert lengths is not None
    own = LossMask.from_columns(columns, lengths, np.arange(NUM_ROWS))
    kept = torch.tensor(columns["reward_valid"].values).bool()
    return MiniBatch(columns, GROUPS, kept, own, Denominators(20, 9, 16), 1.0)


def parts_of(batch: MiniBatch) -> list[MicroBatch]:
    columns, packing = batch.columns, Packing(80, SequenceCost(64), share_prompts=True)
    parts = pack_micro_batches(
        columns["prompt_tokens"],
        columns["response_tokens"],
        batch.groups,
        packing,
        keep_groups=True,
    )
    return [part.select(batch.loss_mask.flags[part.tokens]) for part in parts]


@pytest.mark.parametrize("has_mask", [False, True])
@pytest.mark.parametrize("name", list(LOSSES))
def test_a_loss_is_computed_where_the_model_is(name: str, has_mask: bool) -> None:
    batch, metrics = mini_batch(has_mask), MetricAccumulator()
    loss = LOSSES[name](batch, metrics)
    parts = parts_of(batch)
    assert len(parts) > 1
    for part in parts:
        count = len(part.rows) if name == "scores" else len(part.targets)
        values, entropies = (
            torch.zeros(count, device="meta", requires_grad=True) for _ in range(2)
        )
        share = loss(TokenOutputs(values, entropies), part)
        assert share.device.type == "meta"
        torch.autograd.backward(share)
        assert values.grad is not None and values.grad.device.type == "meta"
    noted = [total for _, total, _ in metrics._totals] + [value for _, value in metrics._maxima]
    devices = {each.device.type for each in noted if isinstance(each, torch.Tensor)}
    assert devices == {"meta"}, "read together: they must be in one place"
