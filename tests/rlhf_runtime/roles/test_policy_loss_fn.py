"""Which rows can have a gradient."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from rlhf_flow.step.losses import ClippedLoss
from rlhf_runtime.dataplane.columns import Column
from rlhf_runtime.numerics.losses import Denominators
from rlhf_runtime.roles.metrics import MetricAccumulator
from rlhf_runtime.roles.mini_batches import LossMask, MiniBatch
from rlhf_runtime.roles.policy_loss_fn import PolicyLossFn

LENGTHS = np.array([2, 2, 2, 0, 2, 2], dtype=np.int32)
ADVANTAGES = [[1, 0], [0, 0], [0, 1], [], [np.nan, 0], [1, 1]]
MASK = [[1, 1], [1, 1], [1, 0], [], [0, 1], [0, 0]]


def packed(rows: list[list[float]]) -> Column:
    return Column(np.array([x for row in rows for x in row], dtype=np.float32), LENGTHS)


@pytest.mark.parametrize(
    ("settings", "has_mask", "expected"),
    [
        ({}, False, [0, 2, 4, 5]),
        ({}, True, [0]),
        ({"entropy_coefficient": 0.1}, False, [0, 1, 2, 4, 5]),
        ({"entropy_coefficient": 0.1}, True, [0, 1, 2, 4]),
    ],
)
def test_rows_have_a_gradient_by_their_tokens_that_count(
    settings: dict[str, Any], has_mask: bool, expected: list[int]
) -> None:
    """Zeros, NaN and no token at all, in and beside the tokens that count."""
    columns = {"advantages": packed(ADVANTAGES), "rollout_log_probs": packed(ADVANTAGES)}
    if has_mask:
        columns["response_mask"] = packed(MASK)
    rows = np.arange(6)
    batch = MiniBatch(
        columns,
        rows,
        torch.ones(6, dtype=torch.bool),
        LossMask.from_columns(columns, LENGTHS, rows),
        Denominators(1, 1),
        1.0,
    )
    terms = PolicyLossFn(
        batch, ClippedLoss("reward_valid", **settings), "actor", MetricAccumulator()
    )
    trained, without_gradient = terms.split_by_gradient()
    assert trained.tolist() == expected
    assert sorted([*trained, *without_gradient]) == list(range(6))
