"""Which rules apply, and that they leave decided what is decided."""

from __future__ import annotations

from typing import Any

import pytest

from rlhf_planner.baselines.all import baselines
from rlhf_planner.baselines.rule import Baseline
from rlhf_planner.evaluate import evaluate, hardware_of_pools
from rlhf_planner.plan_builder import build_plan
from rlhf_planner.problem.problem import PlanningProblem

from ..search.searched_jobs import gpus, ppo

SIMPLE = ["Colocated", "Split", "Standalone"]
ALL = [*SIMPLE, "Megatron heuristic", "ReaL heuristic", "HybridFlow"]
MEGATRON = {"engine": "Megatron"}


def found(problem: PlanningProblem) -> dict[str, Baseline]:
    hardware = hardware_of_pools(problem.pools)
    return {each.alternative.name: each for each in baselines(problem, hardware)}


@pytest.mark.parametrize("training", [{}, MEGATRON])
def test_every_rule_has_a_plan_that_is_judged_like_all(job: Any, training: dict[str, Any]) -> None:
    problem = ppo(job, gpus(8, 2), training=training)
    rules = found(problem)
    assert [*rules] == ALL
    for each in rules.values():
        assert each.job is not None
        plan = build_plan(each.job)
        seconds = evaluate(problem, plan, hardware_of_pools(problem.pools)).step_seconds
        assert each.alternative.step_seconds == seconds
        fullest = max(memory.peak_bytes for memory in plan.memory)
        assert each.alternative.fullest_bytes == fullest <= 80 * 2**30


def test_rules_for_equal_devices_do_not_apply_to_several_pools(job: Any) -> None:
    problem = ppo(job, gpus(4, name="a"), gpus(4, gpu="A100-80G", name="b"))
    assert [*found(problem)] == ["Colocated", "Split"], "three roles do not have two pools"


def test_a_rule_with_nothing_to_place_apart_is_left_out(job: Any) -> None:
    """GRPO without a reference has one role with a model."""
    rollout = {"samplesPerPrompt": 4, "maxPromptTokens": 512, "maxResponseTokens": 512}
    models = {"actor": {"source": {"huggingFace": "Qwen/Qwen2.5-1.5B"}}}
    problem = ppo(job, gpus(8), models=models, algorithm={"type": "GRPO"}, rollout=rollout)
    assert [*problem.models] == ["actor"]
    assert [*found(problem)] == ["Colocated", *ALL[3:]]


def test_what_does_not_fit_says_so(job: Any) -> None:
    for each in found(ppo(job, gpus(2, 1, 5))).values():
        assert each.job is None
        assert each.alternative.step_seconds is None
        assert each.alternative.fullest_bytes is None


def test_a_decided_placement_has_one_rule(job: Any) -> None:
    problem = ppo(job, gpus(8), placement={"type": "Split"})
    assert [*found(problem)] == ["the first that fits"]


def test_cuts_and_engines_of_the_manifest_stay(job: Any) -> None:
    training = {**MEGATRON, "parallelism": {"tensor": 2, "pipeline": 1}}
    rollout = {
        "maxPromptTokens": 512,
        "maxResponseTokens": 512,
        "parallelism": {"tensor": 2},
    }
    for name, each in found(ppo(job, gpus(8), training=training, rollout=rollout)).items():
        assert each.job is not None, name
        assert {own.cut for own in each.job.strategy.roles.values()} == {(2, 1)}
        assert each.job.strategy.engines["actor"].mesh.tensor == 2
