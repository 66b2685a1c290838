"""Rows of calls: those that a person counts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from rlhf_api.plan import GraphName
from rlhf_planner.cost.batches import (
    call_batch,
    generation_call,
    num_token_columns,
    pretraining_batch,
    tokens_per_step,
)
from rlhf_planner.cost.micro_batches import Lengths
from rlhf_planner.memory.generation import GenerationCall
from rlhf_planner.problem.problem import PlanningProblem

from ..planned_jobs import cpus, planned


def problem(made: Any) -> PlanningProblem:
    return planned(made, cpus(1)).problem


def rows(found: PlanningProblem) -> dict[str, tuple[int, int]]:
    """Rows of each call, and how many of them are of one prompt."""
    graph = found.graphs[GraphName.STEP]
    batches = {call.id: call_batch(found, call) for call in graph.calls}
    return {call: (each.rows, each.rows_per_prompt) for call, each in batches.items()}


def test_rows_of_a_group_are_together_from_generation_to_training(job: Any) -> None:
    found = problem(job())
    assert set(rows(found).values()) == {(16 * 4, 4)}
    (generate,) = (each for each in found.graphs[GraphName.STEP].calls if each.method == "generate")
    assert generation_call(found, generate) == GenerationCall(prompts=16, samples=4)
    assert tokens_per_step(found) == 16 * 4 * (16 + 16), "half of the longest, each"


def test_lengths_are_those_that_the_manifest_expects(job: Any) -> None:
    rollout = {"samplesPerPrompt": 4, "maxPromptTokens": 33, "maxResponseTokens": 32}
    made = job(rollout=rollout | {"expectedResponseTokens": 20})
    found = problem(made)
    batch = call_batch(found, found.graphs[GraphName.STEP].calls[0])
    assert (batch.prompt, batch.response) == (Lengths(16.5, 33), Lengths(20, 32, 0.005))
    assert tokens_per_step(found) == 64 * 36.5


def test_greedy_answers_are_one_for_each_prompt(job: Any) -> None:
    found = rows(problem(job(algorithm={"type": "ReMax"})))
    assert (found["actor.generate"], found["actor.generate#2"]) in (
        ((64, 4), (16, 1)),
        ((16, 1), (64, 4)),
    )
    assert found["actor.train"] == (64, 4)


def test_pairs_are_two_rows_of_a_prompt(job: Any) -> None:
    pairs = {"train": {"builtin": "SortDigits", "preferences": {}}}
    found = problem(job(algorithm={"type": "DPO"}, data=pairs, rewards=[]))
    assert set(rows(found).values()) == {(32, 2)}
    assert tokens_per_step(found) == 32 * 32


def test_rounds_count_as_often_as_they_are_expected(job: Any) -> None:
    """DAPO expects two rounds: each generates for a step's prompts, training gets the step's."""
    found = problem(job(algorithm={"type": "DAPO"}))
    graph = found.graphs[GraphName.STEP]
    rounds = graph.expected_count("repeat/actor.generate")
    assert graph.repeats and rounds > 1
    assert rows(found)["repeat/actor.generate"] == (64, 4)
    assert tokens_per_step(found) == pytest.approx(rounds * 64 * 32)


def test_pretraining_has_rows_of_its_own(job: Any) -> None:
    workload = problem(job()).workload
    assert pretraining_batch(replace(workload, pretraining_rows=40)).rows == 40


def test_only_numbers_for_each_token_are_columns(job: Any) -> None:
    graph = problem(job(algorithm={"type": "PPO"})).graphs[GraphName.STEP]
    counts = {call.id: num_token_columns(call) for call in graph.calls}
    assert counts["actor.generate"] == 1, "prompts; the record of a row is none"
    train = graph.call("actor.train")
    names = {"prompt_tokens", "response_tokens", "rollout_log_probs", "advantages"}
    assert names <= set(train.reads)
    others = sum(name in ("response_mask", "loss_mask") for name in train.reads)
    assert counts["actor.train"] == len(names) + others
