"""Responses that are masked or left out: columns, losses and advantages, computed by hand."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch

from rlhf_api.calls import CallKind
from rlhf_api.plan import GraphName
from rlhf_api.spec.policy_loss import LossAggregation
from rlhf_api.spec.stopping import OnStop, StopReason
from rlhf_flow.step.calls import ComputeOptions, ModelCall, TrainOptions
from rlhf_flow.step.column_settings import columns_read_by
from rlhf_flow.step.losses import ClippedLoss, ValueLoss
from rlhf_flow.step.operations import BothValid, GroupAdvantages, GroupBaseline, Operation
from rlhf_runtime.dataplane.columns import Column, pack
from rlhf_runtime.engines.packing import MicroBatch
from rlhf_runtime.engines.parallel import ParallelContext
from rlhf_runtime.engines.response_batch import Generated
from rlhf_runtime.engines.training import TokenOutputs
from rlhf_runtime.numerics.losses import Denominators
from rlhf_runtime.roles.metrics import MetricAccumulator
from rlhf_runtime.roles.mini_batches import MiniBatch, mini_batches
from rlhf_runtime.roles.operations import compute
from rlhf_runtime.roles.policy_loss_fn import PolicyLossFn
from rlhf_runtime.roles.response_columns import response_columns
from rlhf_runtime.roles.response_results import ResponseResults
from rlhf_runtime.roles.scalar_model import ValueLossFn

from ..thread_ranks import ThreadRanks
from .few_rows import FewRows, inputs_of
from .small_batch import make_job

# Two prompts. Row 1 was cut off, row 3 has no score.
BATCH = FewRows(((2, 3), (1, 4)), valid=(1, 1, 1, 0))
LENGTHS = BATCH.response_lengths
FINISHED = [1, 0, 1, 1]
ADVANTAGES = [1.0, 3.0, 100.0, 100.0, 100.0, -1.0, 100.0, 100.0, 100.0, 100.0]
LOG_PROB = -2.0


def per_token(values: list[float]) -> Column:
    return Column(np.array(values, dtype=np.float32), LENGTHS)


COLUMNS = BATCH.columns | {
    "finished": Column(np.array(FINISHED, dtype=np.int8)),
    "advantages": per_token(ADVANTAGES),
    "returns": per_token(ADVANTAGES),
    "critic_values": per_token([0.0] * 10),
    "rollout_log_probs": per_token([LOG_PROB] * 10),
}


def batch_of(loss: ClippedLoss | ValueLoss, columns: Mapping[str, Column] = COLUMNS) -> MiniBatch:
    reads = tuple(sorted(columns_read_by(loss, columns)))
    call = ModelCall("train", "a", "train", CallKind.TRAIN, reads, (), options=TrainOptions(loss))
    alone = cast(ParallelContext, SimpleNamespace(sum=lambda counts: counts, data_size=1))
    (batch,) = mini_batches(inputs_of(BATCH, columns, call, 0, 1), alone, 4, loss.counted)
    return batch


def whole(batch: MiniBatch) -> MicroBatch:
    """All rows; the loss reads neither tokens nor positions."""
    part: Any = SimpleNamespace(
        rows=torch.arange(4), response_lengths=torch.tensor(LENGTHS), tokens=torch.arange(10)
    )
    return cast(MicroBatch, part)


@pytest.mark.parametrize(
    ("aggregation", "finished", "expected"),
    [
        # Tokens of rows 0 and 2: (1 + 3 - 1) / 3. With row 1: (1 + 3 + 300 - 1) / 6.
        (LossAggregation.TOKEN_MEAN, "finished", -1.0),
        (LossAggregation.TOKEN_MEAN, None, -303 / 6),
        # Means of rows 0 and 2: (2 - 1) / 2. With row 1: (2 + 100 - 1) / 3.
        (LossAggregation.SEQUENCE_MEAN_TOKEN_MEAN, "finished", -0.5),
        (LossAggregation.SEQUENCE_MEAN_TOKEN_MEAN, None, -101 / 3),
    ],
)
def test_masked_tokens_are_in_no_numerator_and_no_denominator_of_a_policys_loss(
    aggregation: LossAggregation, finished: str | None, expected: float
) -> None:
    loss = ClippedLoss("reward_valid", aggregation=aggregation, finished=finished)
    batch = batch_of(loss)
    kept = [True, finished is None, True, False]
    assert batch.kept.tolist() == kept
    assert batch.denominators == (Denominators(3, 2, 4) if finished else Denominators(6, 3, 4))
    loss_fn = PolicyLossFn(batch, loss, "actor", MetricAccumulator())
    # The ratio is 1, so a token's loss is its negative advantage.
    outputs = TokenOutputs(torch.full((10,), LOG_PROB), torch.zeros(10))
    assert loss_fn(outputs, whole(batch)).item() == pytest.approx(expected)
    # A masked row is not even run with a gradient.
    assert loss_fn.split_by_gradient()[0].tolist() == [row for row in range(4) if kept[row]]


@pytest.mark.parametrize(
    ("aggregation", "expected"),
    [
        # Tokens of row 0: (1 + 3) / 3 tokens of rows 0 and 2; row 2 has advantage 0.
        (LossAggregation.TOKEN_MEAN, -4 / 3),
        (LossAggregation.SEQUENCE_MEAN_TOKEN_MEAN, -2 / 2),
    ],
)
def test_a_group_of_equal_scores_beside_another_counts_in_the_denominator(
    aggregation: LossAggregation, expected: float
) -> None:
    loss = ClippedLoss("reward_valid", aggregation=aggregation, finished="finished")
    silent = [*ADVANTAGES[:5], 0.0, *ADVANTAGES[6:]]
    batch = batch_of(loss, COLUMNS | {"advantages": per_token(silent)})
    assert batch.denominators == Denominators(3, 2, 4)
    loss_fn = PolicyLossFn(batch, loss, "actor", MetricAccumulator())
    outputs = TokenOutputs(torch.full((10,), LOG_PROB), torch.zeros(10))
    assert loss_fn(outputs, whole(batch)).item() == pytest.approx(expected)


def test_a_critic_learns_nothing_from_masked_tokens() -> None:
    loss = ValueLoss("reward_valid", "critic_values", finished="finished")
    batch = batch_of(loss)
    loss_fn = ValueLossFn(batch, loss, "critic", MetricAccumulator())
    # Half of 1 + 9 + 1, over three tokens.
    share = loss_fn(TokenOutputs(torch.zeros(10)), whole(batch))
    assert share.item() == pytest.approx(11 / 6)


def test_all_responses_masked_are_a_loss_of_zero() -> None:
    loss = ClippedLoss("reward_valid", finished="finished")
    batch = batch_of(loss, COLUMNS | {"finished": Column(np.zeros(4, dtype=np.int8))})
    assert batch.denominators == Denominators(0, 0, 4)
    loss_fn = PolicyLossFn(batch, loss, "actor", MetricAccumulator())
    outputs = TokenOutputs(torch.full((10,), LOG_PROB), torch.zeros(10))
    assert loss_fn(outputs, whole(batch)).item() == 0.0


GROUPS = FewRows(((1, 1, 1, 1), (1, 1, 1, 1), (1, 1, 1, 1)))
SCORES = [1.0, 0.0, 2.0, 9.0, 1.0, 5.0, 5.0, 5.0, 1.0, 2.0, 3.0, 4.0]
ENDS = [1, 1, 1, 0, 1, 0, 0, 0, 0, 0, 0, 0]
LEFT_OUT = BothValid("reward_valid", "finished", "reward_valid")


def advantages(*operations: Operation) -> list[float]:
    columns = GROUPS.columns | {
        "reward_scores": Column(np.array(SCORES, dtype=np.float32)),
        "finished": Column(np.array(ENDS, dtype=np.int8)),
    }
    reads = {name for operation in operations for name in columns_read_by(operation, columns)}
    writes = {name for operation in operations for name in operation.writes}
    call = ModelCall(
        *("compute", None, "compute", CallKind.COMPUTE, tuple(sorted(reads)), tuple(writes)),
        options=ComputeOptions(operations),
    )
    result = compute(inputs_of(GROUPS, columns, call, 0, 1), ThreadRanks(1).parallel(0), {})
    values: list[float] = result.columns["advantages"].values.tolist()
    return values


@pytest.mark.parametrize(
    ("baseline", "expected"),
    [
        # Of 1, 0 and 2, without the 9 that was cut off: the mean is 1.
        (GroupBaseline.MEAN, [0.0, -1.0, 1.0, 0.0]),
        # Means of the other two: 1, 1.5 and 0.5.
        (GroupBaseline.LEAVE_ONE_OUT, [0.0, -1.5, 1.5, 0.0]),
    ],
)
def test_baselines_are_of_the_responses_that_are_left(
    baseline: GroupBaseline, expected: list[float]
) -> None:
    group = GroupAdvantages("reward_scores", "reward_valid", False, baseline)
    # One response is left of the second prompt and none of the third: nothing to compare with.
    assert advantages(LEFT_OUT, group) == pytest.approx([*expected, *[0.0] * 8])


def test_masked_responses_count_in_baselines() -> None:
    group = GroupAdvantages("reward_scores", "reward_valid", False)
    # Means 3, 4 and 2.5.
    expected = [-2, -3, -1, 6, -3, 1, 1, 1, -1.5, -0.5, 0.5, 1.5]
    assert advantages(group) == pytest.approx(expected)


ENDED = (
    StopReason.END_TOKEN,
    StopReason.STOP_TEXT,
    StopReason.TOKEN_LIMIT,
    StopReason.TOKEN_LIMIT,
    StopReason.CONTEXT_LIMIT,
)
NOTHING = pack([[]] * len(ENDED), np.int32)


@pytest.mark.parametrize(
    ("on_stop", "unmasked", "retained"),
    [
        ({}, [1, 1, 1, 1, 1], [1, 1, 1, 1, 1]),
        ({"TokenLimit": "Mask"}, [1, 1, 0, 0, 1], [1, 1, 1, 1, 1]),
        ({"StopText": "LeaveOut"}, [1, 1, 1, 1, 1], [1, 0, 1, 1, 1]),
        ({"TokenLimit": "LeaveOut", "ContextLimit": "Mask"}, [1, 1, 1, 1, 0], [1, 1, 0, 0, 1]),
    ],
)
def test_columns_say_how_each_response_counts(
    on_stop: dict[str, str], unmasked: list[int], retained: list[int]
) -> None:
    generated = Generated(NOTHING, NOTHING, ENDED)
    columns = response_columns(generated, [""] * len(ENDED), OnStop.model_validate(on_stop))
    assert columns["unmasked"].values.tolist() == unmasked
    assert columns["retained"].values.tolist() == retained
    assert columns["finished"].values.tolist() == [1, 1, 0, 0, 0]
    assert columns["stop_reason"].texts() == [reason.value for reason in ENDED]


@pytest.mark.parametrize(
    ("on_stop", "graph", "expected"),
    [
        ({}, GraphName.STEP, {}),
        ({"TokenLimit": "Mask"}, GraphName.STEP, {"response/masked": 2.0}),
        (
            {"TokenLimit": "LeaveOut", "ContextLimit": "LeaveOut"},
            *(GraphName.STEP, {"response/left_out": 3.0}),
        ),
        (
            {"EndToken": "Mask", "ContextLimit": "LeaveOut"},
            *(GraphName.STEP, {"response/masked": 1.0, "response/left_out": 1.0}),
        ),
        ({"TokenLimit": "Mask"}, GraphName.EVALUATION, {}),
    ],
)
def test_responses_that_are_not_trained_on_are_counted(
    on_stop: dict[str, str], graph: GraphName, expected: dict[str, float]
) -> None:
    job = make_job(Path("model"), rollout={"samplesPerPrompt": 2, "onStop": on_stop})
    assert ResponseResults(job.spec)._untrained(graph, ENDED) == expected
