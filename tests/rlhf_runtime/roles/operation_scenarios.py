"""Scenarios of operations: sums of scores, advantages, estimates, a multiplier."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from rlhf_api.spec.policy_loss import KlEstimator
from rlhf_flow.step.calls import ComputeOptions
from rlhf_flow.step.operations import (
    AdaptiveKlCoefficient,
    Custom,
    LagrangeMultiplier,
    Scope,
    TokenRewards,
    WeightedSum,
)
from rlhf_runtime.calls.reports import merge_statistics
from rlhf_runtime.dataplane.columns import Column
from rlhf_runtime.engines.world import World
from rlhf_runtime.roles.operations import compute

from ..meshes import parallel_of
from ..world_of_processes import Scenario
from .scenario_tools import MASKS, batch_for, close, metrics_of, model_folder, own_tokens, whole
from .small_batch import GROUPS, NUM_ROWS, call_of, inputs_of, make_batch, make_job


def scores_are_added_up(world: World, folder: Path) -> None:
    place, columns = model_folder(world, folder), make_batch()
    columns["learned_scores"] = Column(np.linspace(-2, 3, NUM_ROWS).astype(np.float32))
    valid = columns["reward_valid"].values.astype(bool)
    results, totals = [], []
    for counted, kept in (("reward_valid", valid), (None, np.ones_like(valid))):
        terms = {"reward_scores": 1.0, "learned_scores": -0.5}
        operation = WeightedSum(terms, scores="total_scores", valid="counts", counted=counted)
        call = replace(
            call_of(make_job(place), world, "compute"),
            reads=operation.reads,
            writes=operation.writes,
            options=ComputeOptions((operation,)),
        )
        result = compute(inputs_of(call, columns, world), parallel_of(world), {})
        found, metrics = whole(result, world), metrics_of(result, world)
        total = columns["reward_scores"].values - 0.5 * columns["learned_scores"].values
        assert np.allclose(np.concatenate(found["total_scores"]), np.where(kept, total, 0))
        assert np.concatenate(found["counts"]).astype(bool).tolist() == kept.tolist()
        close(metrics["total/mean"], float(total[kept].mean()), "mean")
        close(metrics["total/std"], float(total[kept].std()), "standard deviation")
        results.append(result.statistics)
        totals.append(total[kept])
    everyone: list[Any] = [None] * world.size
    dist.all_gather_object(everyone, results)
    rounds = merge_statistics([each for rank in everyone for each in rank])
    both = np.concatenate(totals)
    close(rounds["total/mean"], float(both.mean()), "mean of both calls, as of two rounds")
    close(rounds["total/std"], float(both.std()), "standard deviation of both calls")


def advantages_compare_within_groups(
    world: World, folder: Path, by_std: bool, has_mask: bool
) -> None:
    place = model_folder(world, folder)
    job = make_job(place, algorithm={"type": "GRPO", "grpo": {"normalizeByStd": by_std}})
    call, columns = batch_for(call_of(job, world, "compute"), has_mask)
    result = compute(inputs_of(call, columns, world), parallel_of(world), {})
    found = whole(result, world)["advantages"]
    scores, valid = columns["reward_scores"].values, columns["reward_valid"].values
    for row in range(NUM_ROWS):
        peers = [scores[r] for r in range(NUM_ROWS) if valid[r] and GROUPS[r] == GROUPS[row]]
        expected = float(scores[row]) - float(np.mean(peers)) if valid[row] else 0.0
        if by_std and valid[row]:
            expected /= float(np.std(peers, ddof=1)) + 1e-6
        assert len(found[row]) == len(columns["response_tokens"].runs()[row])
        of_tokens = expected * own_tokens(columns, row)
        assert np.allclose(found[row], of_tokens, atol=1e-5), (row, found[row], of_tokens)
    metrics = metrics_of(result, world)
    close(metrics["groups/equal"], 0.25, "one of four groups has equal scores")


def estimates_equal_the_sums(world: World, folder: Path, has_mask: bool) -> None:
    """KL in the rewards, generalized advantages as the sum that defines them, whitening over all
    ranks: all of the tokens that count, as if there were no others."""
    place = model_folder(world, folder)
    gamma, lam, coefficient = 0.9, 0.8, 0.3
    settings = {"klCoefficient": coefficient, "gamma": gamma, "gaeLambda": lam}
    job = make_job(place, algorithm={"type": "PPO", "ppo": settings})
    call, columns = batch_for(call_of(job, world, "compute"), has_mask)
    result = compute(inputs_of(call, columns, world), parallel_of(world), {})
    found = whole(result, world)
    returns, advantages, kl_sum = [], [], 0.0
    for row in range(NUM_ROWS):
        own_ones = own_tokens(columns, row)
        sampled = columns["rollout_log_probs"].runs()[row].astype(np.float64)[own_ones]
        kl = sampled - columns["reference_log_probs"].runs()[row].astype(np.float64)[own_ones]
        kl_sum += float(kl.sum())
        rewards = -coefficient * kl
        rewards[-1:] += columns["reward_scores"].values[row]
        values = columns["critic_values"].runs()[row].astype(np.float64)[own_ones]
        values = np.append(values, 0.0)
        deltas = rewards + gamma * values[1:] - values[:-1]
        count = len(deltas)
        own = [
            sum((gamma * lam) ** (later - t) * deltas[later] for later in range(t, count))
            for t in range(count)
        ]
        advantages.append(np.array(own))
        returns.append(np.array(own) + values[:-1])
    valid = columns["reward_valid"].values.astype(bool)
    kept = np.concatenate([a for a, v in zip(advantages, valid, strict=True) if v])
    for row in range(NUM_ROWS):
        own_ones = own_tokens(columns, row)
        whitened = (advantages[row] - kept.mean()) / kept.std(ddof=1)
        expected = whitened if valid[row] else np.zeros_like(whitened)
        for name, of_row in (("returns", returns[row]), ("advantages", expected)):
            assert np.allclose(found[name][row][own_ones], of_row, atol=1e-5)
            assert (found[name][row][~own_ones] == 0).all()
    total = sum(map(len, advantages))
    metrics = metrics_of(result, world)
    close(metrics["reward/kl"], kl_sum / total, "mean KL")
    targets, errors = np.concatenate(returns), np.concatenate(advantages)
    close(metrics["critic/value_mean"], float((targets - errors).mean()), "mean value")
    explained = 1 - errors.var() / targets.var()
    close(metrics["critic/explained_variance"], float(explained), "explained variance")


def an_operation_may_see_all_rows(world: World, folder: Path) -> None:
    """Whatever the number of ranks: by its scope, beside operations that sum over ranks."""
    place, columns = model_folder(world, folder), make_batch()
    job = make_job(place, algorithm={"type": "PPO"})
    call = call_of(job, world, "compute")
    assert isinstance(call.options, ComputeOptions)
    entrypoint = "tests.rlhf_runtime.roles.operation_scenarios:ranked"
    rank = Custom(entrypoint, ["reward_scores"], ["ranks"], scope=Scope.BATCH)
    plain = compute(inputs_of(call, columns, world), parallel_of(world), {})
    call = replace(
        call,
        options=ComputeOptions((*call.options.operations, rank)),
        writes=tuple(sorted((*call.writes, "ranks"))),
    )
    result = compute(inputs_of(call, columns, world), parallel_of(world), {})
    found, without = whole(result, world), whole(plain, world)
    order = np.argsort(np.argsort(columns["reward_scores"].values, kind="stable"))
    assert [float(each[0]) for each in found["ranks"]] == order.tolist()
    for name in without:
        for one, other in zip(found[name], without[name], strict=True):
            assert np.allclose(one, other, atol=1e-6), name
    metrics = metrics_of(plain, world)
    assert metrics_of(result, world) == pytest.approx(metrics)


def ranked(columns: Mapping[str, Column]) -> dict[str, Column]:
    scores = columns["reward_scores"].values
    return {"ranks": Column(np.argsort(np.argsort(scores, kind="stable")).astype(np.float32))}


def a_multiplier_is_learned_from_all_costs(world: World, folder: Path) -> None:
    place, columns = model_folder(world, folder), make_batch()
    job = make_job(place)
    operation = LagrangeMultiplier("reward_scores", "reward_valid", limit=0.25)
    call = replace(
        call_of(job, world, "compute"),
        reads=operation.reads,
        writes=operation.writes,
        options=ComputeOptions((operation,)),
    )
    valid = columns["reward_valid"].values.astype(bool)
    cost = float(columns["reward_scores"].values[valid].mean())
    state: dict[str, torch.Tensor] = {}
    expected = 1.0
    for _ in range(3):
        result = compute(inputs_of(call, columns, world), parallel_of(world), state)
        expected *= float(np.exp(0.1 * expected * (cost - 0.25)))
        found = whole(result, world)["multiplier"]
        assert np.allclose(np.concatenate(found), expected, rtol=1e-6)
        close(metrics_of(result, world)["reward/multiplier"], expected, "multiplier")
        close(float(state["multiplier"]), expected, "what is kept")


def a_kl_coefficient_follows_the_kl(world: World, folder: Path) -> None:
    """By the KL of complete responses of all ranks; a resumed run goes on with the same numbers."""
    place, columns = model_folder(world, folder), make_batch()
    reference, own = columns["reference_log_probs"], columns["rollout_log_probs"]
    assert own.lengths is not None
    ends = np.cumsum(own.lengths)[:-1]
    differences = np.split(own.values.astype(np.float64) - reference.values, ends)
    kl = float(np.mean([np.sum(0.5 * one**2) for one in differences]))
    adapt = AdaptiveKlCoefficient(0.05, 2.0, "reference_log_probs", KlEstimator.K2, horizon=40)
    penalty = TokenRewards(
        *("reward_scores", 0.05, KlEstimator.K2),
        reference_log_probs="reference_log_probs",
        adaptive_coefficient="kl_coefficient",
    )
    call = replace(
        call_of(make_job(place), world, "compute"),
        reads=tuple(sorted({*adapt.reads, *penalty.reads} - {"kl_coefficient"})),
        writes=("kl_coefficient", "token_rewards"),
        options=ComputeOptions((adapt, penalty)),
    )
    expected, factor = 0.05, 1 + min(max(kl / 2.0 - 1, -0.2), 0.2) * NUM_ROWS / 40
    state: dict[str, torch.Tensor] = {}
    saved, found = {}, []
    for step in range(4):
        if step == 2:
            saved = {name: value.clone() for name, value in state.items()}
        result = compute(inputs_of(call, columns, world), parallel_of(world), state)
        found.append(whole(result, world))
        assert np.allclose(np.concatenate(found[-1]["kl_coefficient"]), expected, rtol=1e-6)
        metrics = metrics_of(result, world)
        close(metrics["reference/kl_coefficient"], expected, "coefficient")
        close(metrics["reference/response_kl"], kl, "KL of a response")
        expected *= factor
        close(float(state["kl_coefficient"]), expected, "what is kept")
    for step in (2, 3):
        again = whole(compute(inputs_of(call, columns, world), parallel_of(world), saved), world)
        for name, rows in found[step].items():
            assert all(map(np.array_equal, rows, again[name])), name


SCENARIOS: dict[str, Scenario] = {
    "scores are added up": scores_are_added_up,
    **{
        f"{name}{end}": partial(scenario, has_mask=has_mask)
        for end, has_mask in MASKS.items()
        for name, scenario in {
            "advantages compare within groups": partial(
                advantages_compare_within_groups, by_std=True
            ),
            "advantages without deviation": partial(advantages_compare_within_groups, by_std=False),
            "estimates equal the sums": estimates_equal_the_sums,
        }.items()
    },
    "an operation may see all rows": an_operation_may_see_all_rows,
    "a multiplier is learned from all costs": a_multiplier_is_learned_from_all_costs,
    "a KL coefficient follows the KL": a_kl_coefficient_follows_the_kl,
}
