"""What calls of a plan would take otherwise."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from rlhf_planner.evaluate import hardware_of_pools
from rlhf_planner.placement.strategy import strategy_of
from rlhf_planner.plan import plan_problem
from rlhf_planner.search import neighbours as module
from rlhf_planner.search.neighbours import neighbours

from .searched_jobs import gpus, ppo

PLAIN = {"activationRecompute": False, "microBatchTokens": 2048, "engine": "Megatron"}


@pytest.mark.parametrize("gibibytes", [24, 80])
def test_no_other_choice_for_a_call_of_the_fastest_plan_is_faster(job: Any, gibibytes: int) -> None:
    problem = ppo(job, gpus(2, 1, gibibytes), training={"engine": "Megatron"})
    plan = plan_problem(problem, max_candidates=10**6)
    assert plan.search is not None and plan.search.is_optimal and plan.estimate is not None
    for call in ("actor.train", "actor.generate", "critic.train", "reference.log_probs"):
        found = neighbours(problem, plan, hardware_of_pools(problem.pools), call)
        assert found
        for each in found:
            slower = each.step_seconds is None or each.step_seconds >= plan.estimate.step_seconds
            assert slower, each


def test_each_choice_that_is_left_open_is_varied(job: Any) -> None:
    def names(training: dict[str, Any], call: str) -> set[str]:
        problem = ppo(job, gpus(2), training=training)
        plan = plan_problem(problem)
        return {
            each.name for each in neighbours(problem, plan, hardware_of_pools(plan.pools), call)
        }

    assert names({}, "actor.train") >= {"micro-batches of 1024 tokens", "activations recomputed"}
    cuts = names(PLAIN, "actor.train")
    assert len(cuts) in (2, 3) and all(name.startswith("tensor ") for name in cuts)
    assert len(names({}, "actor.generate")) == 1
    assert not names(PLAIN | {"parallelism": {"tensor": 1, "pipeline": 1}}, "critic.train")


def test_engines_of_another_size_have_a_stride_of_their_own(job: Any) -> None:
    """A stride that one size has may be too large for another."""
    problem = ppo(job, gpus(8))
    strategy = strategy_of(plan_problem(problem, max_candidates=1))
    engines = replace(strategy.engines["actor"], tensor=4, tensor_stride=2, kv_cache_bytes=1)
    given = replace(strategy, engines={"actor": engines})
    variants = dict(module._variants(problem, given, "actor", generates=True))
    assert {"engines of 1", "engines of 2"} <= variants.keys() and "engines of 4" not in variants
    for name, variant in variants.items():
        own = variant.engines["actor"]
        assert own.mesh.num_devices == engines.devices.num_devices, name
        assert own.tensor_stride is None and own.kv_cache_bytes is None
