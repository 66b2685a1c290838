"""Scenarios of operations with response masks: what they reach, and what they leave."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from rlhf_api.calls import CallKind
from rlhf_api.spec.policy_loss import KlEstimator
from rlhf_flow.step.calls import ComputeOptions, ModelCall
from rlhf_flow.step.column_settings import columns_read_by
from rlhf_flow.step.columns import Kind
from rlhf_flow.step.operations import (
    AboveBaseline,
    Custom,
    Gae,
    GroupAdvantages,
    GroupBaseline,
    Operation,
    OverlongPenalty,
    PenalizedAdvantages,
    PenalizedScores,
    RewardsToGo,
    Scope,
    TokenRewards,
    Whiten,
)
from rlhf_runtime.dataplane.columns import Column
from rlhf_runtime.engines.world import World
from rlhf_runtime.roles.operations import compute

from ..meshes import parallel_of
from ..world_of_processes import Scenario
from .scenario_tools import (
    metrics_of,
    own_tokens,
    whole,
)
from .small_batch import (
    NUM_ROWS,
    RESPONSE_LENGTHS,
    inputs_of,
    make_batch,
    masked,
)

REFERENCE = "reference_log_probs"


def computing(columns: Mapping[str, Column], *operations: Operation) -> ModelCall:
    """A call of these operations on a batch of these columns, as the flow makes it."""
    reads: set[str] = set()
    writes: set[str] = set()
    for operation in operations:
        reads |= columns_read_by(operation, {*columns, *writes}) - writes
        writes |= set(operation.writes)
    return ModelCall(
        id="compute",
        role=None,
        method="compute",
        kind=CallKind.COMPUTE,
        reads=tuple(sorted(reads)),
        writes=tuple(sorted(writes)),
        options=ComputeOptions(operations),
    )


def computed(
    columns: Mapping[str, Column], world: World, *operations: Operation
) -> tuple[dict[str, list[np.ndarray]], dict[str, float]]:
    """What operations write, row by row, and their metrics."""
    call = computing(columns, *operations)
    result = compute(inputs_of(call, columns, world), parallel_of(world), {})
    return whole(result, world), metrics_of(result, world)


def without_gaps(columns: Mapping[str, Column]) -> dict[str, Column]:
    """Responses that consist of the tokens that count, and nothing else."""
    flags = columns["response_mask"].values == 1
    counts = np.array([own_tokens(columns, row).sum() for row in range(NUM_ROWS)], dtype=np.int32)
    return {
        name: Column(each.values[flags], counts)
        if each.lengths is not None and name != "prompt_tokens"
        else each
        for name, each in columns.items()
        if name != "response_mask"
    }


def an_operation_is_about_own_tokens(world: World, folder: Path, operation: Operation) -> None:
    """The same as for responses that have no others; 0 on the others."""
    columns = masked(
        make_batch() | {"multiplier": Column(np.full(NUM_ROWS, 0.3, dtype=np.float32))}
    )
    of_tokens = {each.column for each in operation.outputs() if each.kind is not Kind.SCORES}
    found, metrics = computed(columns, world, operation)
    expected, same = computed(without_gaps(columns), world, operation)
    for name, rows in expected.items():
        for row, values in enumerate(rows):
            flags, got = own_tokens(columns, row), found[name][row]
            if name in of_tokens:
                assert (got[~flags] == 0).all()
                got = got[flags]
            assert np.allclose(got, values, atol=1e-6), (name, row)
    assert metrics == pytest.approx(same, rel=1e-6)
    ones = make_batch() | {"multiplier": columns["multiplier"]}
    lengths = columns["response_mask"].lengths
    full, metrics = computed(
        ones | {"response_mask": Column(np.ones(sum(RESPONSE_LENGTHS)), lengths)}, world, operation
    )
    expected, same = computed(ones, world, operation)
    assert metrics == same
    for name, rows in expected.items():
        assert all(map(np.array_equal, full[name], rows))


def a_length_limit_is_about_whole_responses(world: World, folder: Path) -> None:
    operation = OverlongPenalty("reward_scores", longest=12, margin=8)
    found, metrics = computed(masked(make_batch()), world, operation)
    expected, same = computed(make_batch(), world, operation)
    assert np.array_equal(found["shaped_scores"], expected["shaped_scores"]) and metrics == same


def a_mask_may_be_made_in_the_same_call(world: World, folder: Path) -> None:
    """It holds for what comes behind it."""
    columns = masked(make_batch())
    mask = columns.pop("response_mask")
    make = Custom(
        "tests.rlhf_runtime.roles.mask_scenarios:kept",
        ["response_tokens", "given"],
        ["response_mask"],
        scope=Scope.ROW,
    )
    rewards = TokenRewards(
        "reward_scores", 0.1, KlEstimator.K1, reference_log_probs="reference_log_probs"
    )
    found, metrics = computed(columns | {"given": mask}, world, make, rewards)
    expected, same = computed(columns | {"response_mask": mask}, world, rewards)
    assert all(map(np.array_equal, found["token_rewards"], expected["token_rewards"]))
    assert metrics == same and np.isfinite(metrics["reward/kl"])


def kept(columns: Mapping[str, Column]) -> dict[str, Column]:
    assert list(columns) == ["response_tokens", "given"]
    return {"response_mask": columns["given"]}


TOKEN_OPERATIONS: tuple[tuple[str, Operation], ...] = (
    ("", TokenRewards("reward_scores")),
    (
        ", KL",
        TokenRewards(
            "reward_scores", 0.1, KlEstimator.K1, reference_log_probs="reference_log_probs"
        ),
    ),
    ("", Gae(0.9, 0.8, values="critic_values")),
    ("", RewardsToGo(0.9)),
    ("", Whiten("reward_valid")),
    ("", AboveBaseline("reward_scores", "reward_valid")),
    ("", PenalizedScores("reward_scores", 0.1, REFERENCE, KlEstimator.K1)),
    ("", PenalizedAdvantages("returns")),
    *(
        (f", {each.value}", GroupAdvantages("reward_scores", "reward_valid", baseline=each))
        for each in GroupBaseline
    ),
)
"""Every built-in operation that is about single tokens."""
SCENARIOS: dict[str, Scenario] = {
    **{
        f"{type(operation).__name__} is about own tokens{end}": partial(
            an_operation_is_about_own_tokens, operation=operation
        )
        for end, operation in TOKEN_OPERATIONS
    },
    "a length limit is about whole responses": a_length_limit_is_about_whole_responses,
    "a mask may be made in the same call": a_mask_may_be_made_in_the_same_call,
}
