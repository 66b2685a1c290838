"""The choice of a fusion: taken where it pays, not worse than others, in a valid plan."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from rlhf_api.plan import Plan
from rlhf_planner.cost.fusion import Fusion, fused_plan, fusion_of
from rlhf_planner.cost.hardware import HARDWARE
from rlhf_planner.evaluate import evaluate, with_estimate
from rlhf_planner.stage_fusion.choice import MIN_GAIN, best_fusion

from .fused_jobs import APART, FREED, Unfused, unfused

HARDWARE_OF_POOL = {"a": HARDWARE["H100"]}
COLOCATED = [{"roles": ["actor", "reference", "critic"]}]
BALANCED = [
    {"roles": ["actor"], "devices": 8},
    {"roles": ["reference", "critic"], "firstDevice": 8},
]


@cache
def job(name: str) -> Unfused:
    groups = {"apart": APART, "freed": FREED, "colocated": COLOCATED, "balanced": BALANCED}[name]
    return unfused(groups)


def seconds(found: Unfused, plan: Plan) -> float:
    return evaluate(found.problem, plan, HARDWARE_OF_POOL).step_seconds


@pytest.mark.parametrize("name", ["freed", "balanced"])
def test_steps_get_shorter_by_it(name: str) -> None:
    found = job(name)
    best = best_fusion(found.problem, found.plan, HARDWARE_OF_POOL)
    assert best is not None and fusion_of(best.plan) == best.fusion
    assert best.step_seconds == seconds(found, best.plan)
    assert best.step_seconds < (1 - MIN_GAIN) * seconds(found, found.plan)


@pytest.mark.parametrize("name", ["freed", "balanced"])
def test_no_other_threshold_of_its_engines_is_much_better(name: str) -> None:
    found = job(name)
    best = best_fusion(found.problem, found.plan, HARDWARE_OF_POOL)
    assert best is not None
    fusion = best.fusion
    others = [
        fused_plan(
            found.plan, found.graph, Fusion(fusion.generate, fusion.mesh, rows, fusion.calls)
        )
        for rows in range(1, 256, 3)
    ]
    assert best.step_seconds <= 1.005 * min(seconds(found, each) for each in others)


def test_on_the_same_devices_nothing_overlaps() -> None:
    found = job("colocated")
    assert best_fusion(found.problem, found.plan, HARDWARE_OF_POOL) is None


def test_it_is_not_taken_where_it_does_not_pay() -> None:
    """Against shorter steps than any it leads to, and where no response is longer than others."""
    found = job("freed")
    best = best_fusion(found.problem, found.plan, HARDWARE_OF_POOL)
    assert best is not None
    shorter = best.step_seconds * (1 + MIN_GAIN / 2)
    assert best_fusion(found.problem, found.plan, HARDWARE_OF_POOL, shorter) is None
    rollout = {"maxPromptTokens": 512, "maxResponseTokens": 800, "expectedResponseTokens": 800}
    equal = unfused(APART, rollout=rollout | {"parallelism": {"tensor": 1}})
    assert best_fusion(equal.problem, equal.plan, HARDWARE_OF_POOL) is None


def test_a_threshold_that_overlaps_nothing_is_no_other_plan() -> None:
    """All engines finish, verifiers alone begin early: but for what it costs to look, and for when
    the longest response is expected, it takes what the plan takes."""
    found = job("apart")
    plain = evaluate(found.problem, found.plan, HARDWARE_OF_POOL)
    for threshold in (4, 16, 64):
        plan = found.fused(threshold, range(4), "reward.score")
        fused = evaluate(found.problem, plan, HARDWARE_OF_POOL)
        assert fused.step_seconds == pytest.approx(plain.step_seconds, rel=0.02)
        both = fused.calls["actor.generate"].total + fused.calls["actor.finish"].total
        assert both == pytest.approx(plain.calls["actor.generate"].total, rel=0.03)
        assert fused.late_seconds == {}


def test_both_parts_of_a_call_have_its_tokens() -> None:
    """Long responses end last: a tenth of the rows is more than a tenth of the work."""
    found = job("apart")
    plan = found.fused(26, range(4), "reference.log_probs", "critic.values")
    fused, plain = (evaluate(found.problem, each, HARDWARE_OF_POOL) for each in (plan, found.plan))
    for call in ("reference.log_probs", "critic.values"):
        assert fused.calls[call].total == pytest.approx(plain.calls[call].total, rel=0.2)
        assert 0.15 < fused.late_seconds[call] / fused.calls[call].total < 0.6


def test_fused_plans_are_plans(tmp_path: Any) -> None:
    """And survive being written and read, with their expected times."""
    found = job("freed")
    best = best_fusion(found.problem, found.plan, HARDWARE_OF_POOL)
    assert best is not None
    plan = with_estimate(found.problem, best.plan)
    read = Plan.model_validate_json(plan.model_dump_json(by_alias=True))
    assert read == plan and fusion_of(read) == best.fusion
    assert read.estimate is not None
    assert read.estimate.step_seconds == best.step_seconds
    late = read.estimate.late_seconds_by_call
    assert set(late) == set(best.fusion.calls) - {"reward.score"}
    assert fusion_of(found.plan) is None and read.memory == found.plan.memory
