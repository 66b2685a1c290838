"""Every operation on batches of few rows, on one and on several ranks, against its plain form.

Ranks are threads: some have no rows, and all of them call the same collectives.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch

from rlhf_api.calls import CallKind
from rlhf_api.plan import GraphName
from rlhf_api.reading.manifest import load_jobs
from rlhf_api.spec.algorithm import AlgorithmType
from rlhf_api.spec.job import RLHFJob
from rlhf_api.spec.policy_loss import KlEstimator
from rlhf_flow.jobs.job_graphs import trace_job
from rlhf_flow.step.calls import ComputeOptions, ModelCall
from rlhf_flow.step.column_settings import columns_read_by
from rlhf_flow.step.columns import Kind
from rlhf_flow.step.operations import (
    AboveBaseline,
    AdaptiveKlCoefficient,
    AddTurnAdvantages,
    AddTurnRewards,
    BestAgainstWorst,
    BothValid,
    Custom,
    EnoughGroups,
    Gae,
    GroupAdvantages,
    GroupBaseline,
    LagrangeMultiplier,
    MixedGroups,
    Operation,
    OverlongPenalty,
    PairLines,
    PassAtK,
    PenalizedAdvantages,
    PenalizedScores,
    RewardsToGo,
    Scope,
    TokenRewards,
    WeightedSum,
    Whiten,
)
from rlhf_runtime.calls.reports import merge_statistics
from rlhf_runtime.dataplane.columns import Column, pack_texts
from rlhf_runtime.roles import operations
from rlhf_runtime.roles.context import Result
from rlhf_runtime.roles.operations import compute

from ..thread_ranks import ThreadRanks
from .few_rows import BATCHES, MAX_RESPONSE, WORLD_SIZES, FewRows, in_order, inputs_of, some_batches
from .plain_operations import PLAIN_FORMS, PlainBatch

SCORED = ("reward_scores", "reward_valid")
REFERENCE = "reference_log_probs"
IN_REWARDS = [k for k in KlEstimator if k is not KlEstimator.K3_CORRECTED]
OPERATIONS: tuple[Operation, ...] = (
    TokenRewards("reward_scores"),
    *(
        TokenRewards("reward_scores", 0.1, kl_estimator=k, reference_log_probs=REFERENCE)
        for k in IN_REWARDS
    ),
    AddTurnRewards(0.5, turn_rewards="returns"),
    *(
        AddTurnAdvantages("reward_valid", 0.5, 0.9, by_std, turn_rewards="returns")
        for by_std in (True, False)
    ),
    Gae(0.9, 0.8, values="critic_values"),
    RewardsToGo(0.9),
    Whiten("reward_valid"),
    *(
        GroupAdvantages(*SCORED, normalize_by_std=by_std, baseline=baseline)
        for baseline in GroupBaseline
        for by_std in (True, False)
    ),
    AboveBaseline(*SCORED),
    *(PenalizedScores("reward_scores", 0.1, REFERENCE, kl_estimator=k) for k in IN_REWARDS),
    *(AdaptiveKlCoefficient(0.1, 2.0, REFERENCE, kl_estimator=k) for k in IN_REWARDS),
    TokenRewards(
        *("reward_scores", 0.1, KlEstimator.K1),
        reference_log_probs=REFERENCE,
        adaptive_coefficient="multiplier",
    ),
    PenalizedScores(
        *("reward_scores", 0.1, REFERENCE, KlEstimator.K1), adaptive_coefficient="multiplier"
    ),
    OverlongPenalty("reward_scores", longest=MAX_RESPONSE, margin=MAX_RESPONSE),
    OverlongPenalty("reward_scores", longest=1, margin=1),
    MixedGroups(*SCORED),
    EnoughGroups("reward_valid", num_groups=1),
    EnoughGroups("reward_valid", num_groups=3),
    BothValid("reward_valid", "cost_valid"),
    PassAtK(*SCORED, ks=(1, 2, 3)),
    BestAgainstWorst(*SCORED),
    PairLines("reward_scores"),
    LagrangeMultiplier("cost_scores", "cost_valid", limit=0.25),
    LagrangeMultiplier("reward_scores", "reward_valid", maximum=1.0),
    PenalizedAdvantages("returns"),
    WeightedSum({"reward_scores": 1.0, "cost_scores": -0.5}, "total_scores", "total_valid"),
    WeightedSum({"reward_scores": 1.0}, "total_scores", "total_valid", counted="reward_valid"),
)
"""Every built-in one, and every value of the settings by which one does something else."""
FLOAT32 = 2e-5
"""How far numbers in float32 may be from those in float64, relative to the larger of 1 and these:
advantages over a small deviation are some thousands."""


def call_of(columns: Mapping[str, Column], *operations: Operation) -> ModelCall:
    """A call of these operations on a batch of these columns, as the flow makes it."""
    reads: set[str] = set()
    writes: set[str] = set()
    for operation in operations:
        reads |= columns_read_by(operation, {*columns, *writes}) - writes
        writes |= set(operation.writes)
    names = tuple(sorted(reads)), tuple(sorted(writes))
    return ModelCall(
        "compute", None, "compute", CallKind.COMPUTE, *names, options=ComputeOptions(operations)
    )


def computed(batch: FewRows, size: int, *operations: Operation) -> list[Result]:
    """What every rank makes."""
    columns, ranks = batch.columns, ThreadRanks(size)
    call = call_of(columns, *operations)

    def on_rank(rank: int) -> Result:
        inputs = inputs_of(batch, columns, call, rank, size)
        return compute(inputs, ranks.parallel(rank), {})

    return ranks.run(on_rank)


def written(results: Sequence[Result], name: str) -> list[Any]:
    """Of all ranks, in the order of the rows."""
    shards = [(made.index, made.columns) for made in results if made.index is not None]
    return in_order(shards, name)


def test_every_operation_is_in_the_table() -> None:
    assert {type(operation) for operation in OPERATIONS} | {Custom} == set(get_args(Operation))
    assert PLAIN_FORMS.keys() == {type(operation) for operation in OPERATIONS}
    assert operations.OPERATIONS.keys() == set(get_args(Operation))


@pytest.mark.parametrize(
    ("operation", "batch"),
    [
        pytest.param(operation, BATCHES[name], id=f"{type(operation).__name__}-{number}-{name}")
        for number, operation in enumerate(OPERATIONS)
        for name in some_batches(number)
    ],
)
def test_an_operation_equals_its_plain_form(operation: Operation, batch: FewRows) -> None:
    expected = PlainBatch.of(batch.columns, batch.groups.tolist())
    PLAIN_FORMS[type(operation)](expected, operation)
    for size in WORLD_SIZES:
        results = computed(batch, size, operation)
        for name in operation.writes:
            for row, got in zip(expected.rows, written(results, name), strict=True):
                want = np.asarray(row[name], dtype=np.float64).reshape(-1)
                assert np.allclose(got, want, rtol=FLOAT32, atol=FLOAT32), (size, name, row)
            forms = {made.columns[name].lengths is None for made in results}
            assert len(forms) == 1, "a rank without rows makes columns of the same form"
        metrics = merge_statistics([made.statistics for made in results])
        assert all(map(isfinite, metrics.values())), (size, metrics)
        assert metrics == pytest.approx(expected.metrics(), rel=FLOAT32, abs=FLOAT32), size


EXAMPLES = sorted((Path(__file__).parents[3] / "examples").glob("*.yaml"))
JOBS = {path.stem: load_jobs(path.read_text(), path.name, [])[0] for path in EXAMPLES}


def operations_of(job: RLHFJob) -> tuple[Operation, ...]:
    """What a step of a job computes: what an operation writes others read."""
    calls = [call.options for call in trace_job(job)[GraphName.STEP].calls]
    computed = [options for options in calls if isinstance(options, ComputeOptions)]
    return tuple(operation for options in computed for operation in options.operations)


CHAINS = {str(chain): chain for job in JOBS.values() if (chain := operations_of(job))}
"""Different ones."""


def test_every_algorithm_has_an_example() -> None:
    types = {job.spec.algorithm.type for job in JOBS.values()}
    assert types == {*AlgorithmType} - {AlgorithmType.CUSTOM}


@pytest.mark.parametrize(
    ("chain", "batch"),
    [
        pytest.param(chain, BATCHES[name], id=f"{number}-{name}")
        for number, chain in enumerate(CHAINS.values())
        for name in some_batches(number)
    ],
)
def test_operations_read_what_others_have_written(
    chain: tuple[Operation, ...], batch: FewRows
) -> None:
    expected = PlainBatch.of(batch.columns, batch.groups.tolist())
    for operation in chain:
        PLAIN_FORMS[type(operation)](expected, operation)
    for size in WORLD_SIZES:
        results = computed(batch, size, *chain)
        for name in results[0].columns:
            for row, got in zip(expected.rows, written(results, name), strict=True):
                want = np.asarray(row[name], dtype=np.float64).reshape(-1)
                assert np.allclose(got, want, rtol=1e-4, atol=1e-4), (size, name, row)


ONE_ROW = BATCHES["one row"]
NAMED = f"{__name__}:"


def per_token(columns: Mapping[str, Column]) -> dict[str, Column]:
    scores, lengths = columns["reward_scores"].values, columns["response_tokens"].lengths
    assert lengths is not None
    largest = scores.max()  # fails without rows, as an author may write it
    return {"advantages": Column(np.repeat(scores / largest, lengths), lengths)}


def of_each_kind(columns: Mapping[str, Column]) -> dict[str, Column]:
    scores = columns["reward_scores"].values
    count = len(scores)
    return {
        "rate": Column(scores - scores.min()),
        "lines": pack_texts(["{}"] * count),
        "untold": Column(np.stack([scores, scores], axis=1)),
        "counted": Column(np.ones(count, dtype=bool)),
    }


def remembers(columns: Mapping[str, Column], *, state: dict[str, Any]) -> dict[str, Column]:
    state["seen"] += float(columns["reward_scores"].values.max())
    return {"rate": columns["reward_scores"]}


@pytest.mark.parametrize("size", WORLD_SIZES)
def test_a_function_is_not_called_without_rows(size: int) -> None:
    reads = ["reward_scores", "response_tokens"]
    made = Custom(f"{NAMED}per_token", reads, ["advantages"])
    results = computed(ONE_ROW, size, made, Whiten("reward_valid"))
    assert written(results, "advantages") == [[0.0, 0.0, 0.0]]
    kinds = {"rate": Kind.SCORES, "counted": Kind.TRUTH}
    several = Custom(
        f"{NAMED}of_each_kind", reads, ["rate", "lines", "untold", "counted"], kinds=kinds
    )
    shaped = OverlongPenalty("rate", longest=4, margin=4)
    total = WeightedSum({"rate": 2.0, "shaped_scores": 1.0}, "x_scores", "x_valid", "counted")
    results = computed(ONE_ROW, size, several, shaped, total)
    assert written(results, "x_scores") == [[-0.75]] and written(results, "x_valid") == [[1]]
    assert written(results, "lines") == [list(b"{}")]


@pytest.mark.parametrize("size", WORLD_SIZES)
def test_what_a_function_keeps_is_the_same_on_ranks_without_rows(size: int) -> None:
    operation = Custom(
        f"{NAMED}remembers",
        ["reward_scores"],
        ["rate"],
        scope=Scope.BATCH,
        keeps={"seen": 0.5},
    )
    columns, ranks = ONE_ROW.columns, ThreadRanks(size)
    call = call_of(columns, operation)

    def on_rank(rank: int) -> float:
        state: dict[str, torch.Tensor] = {}
        inputs = inputs_of(ONE_ROW, columns, call, rank, size)
        compute(inputs, ranks.parallel(rank), state)
        return float(state["seen"])

    assert ranks.run(on_rank) == [0.5 + float(columns["reward_scores"].values[0])] * size
