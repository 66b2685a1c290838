"""A fusion that the manifest asks for."""

from __future__ import annotations

from typing import Any

import pytest

from rlhf_api.plan import GraphName
from rlhf_flow.errors import NotOffered
from rlhf_planner.cost.fusion import fusion_of
from rlhf_planner.plan import make_plan
from rlhf_planner.problem.devices import GIB, local_inventory
from rlhf_planner.stage_fusion.choice import apply_requested_fusion

from ..planned_jobs import QWEN
from .fused_jobs import APART, FREED, long_ppo, mesh_of, unfused

ALWAYS = {"stageFusion": "Always"}
LONG: dict[str, Any] = {
    "maxPromptTokens": 512,
    "maxResponseTokens": 4096,
    "parallelism": {"tensor": 1},
    "maxConcurrentSequences": 8,
}


def test_most_engines_finish_that_leave_most_calls_free() -> None:
    """Reference and critic are on devices 8 to 15; eight of sixteen engines finish."""
    job = unfused(FREED, rollout=LONG | ALWAYS)
    assert fusion_of(job.plan) is None
    fusion = fusion_of(apply_requested_fusion(job.problem, job.plan))
    assert fusion is not None
    assert fusion.mesh == mesh_of(0, 8)
    assert fusion.calls == ("reward.score", "reference.log_probs", "critic.values")
    assert fusion.threshold_rows == 16 * 8 // 2, "half of those under way"


def test_the_threshold_is_the_manifests() -> None:
    job = unfused(APART, rollout=LONG | ALWAYS | {"stageFusionThreshold": 5})
    fusion = fusion_of(apply_requested_fusion(job.problem, job.plan))
    assert fusion is not None and fusion.threshold_rows == 5
    assert fusion.mesh == mesh_of(0, 4), "all engines, on whose devices no other role is"


def test_without_being_told_a_plan_stays_as_it_is() -> None:
    for kind in ("Auto", "Never"):
        job = unfused(FREED, rollout=LONG | {"stageFusion": kind})
        assert apply_requested_fusion(job.problem, job.plan) is job.plan


def test_verifiers_begin_early_wherever_roles_are() -> None:
    job = unfused([{"roles": ["actor", "reference", "critic"]}], rollout=LONG | ALWAYS)
    fusion = fusion_of(apply_requested_fusion(job.problem, job.plan))
    assert fusion is not None
    assert (fusion.calls, fusion.mesh) == (("reward.score",), mesh_of(0, 16))


def test_where_nothing_can_overlap_it_says_why() -> None:
    groups = [{"roles": ["actor", "reference"]}]
    models = {"actor": QWEN}
    greedy = {"type": "ReMax", "reMax": {"klCoefficient": 0.05}}
    job = unfused(groups, rollout=LONG | ALWAYS, algorithm=greedy, models=models)
    with pytest.raises(NotOffered) as raised:
        apply_requested_fusion(job.problem, job.plan)
    assert "reference.log_probs: the step repeats something, or has not one" in str(raised.value)


def test_processes_on_cpus_do_as_they_are_told() -> None:
    groups = [
        {"roles": ["actor"], "devices": 1},
        {"roles": ["reference", "critic"], "firstDevice": 1},
    ]
    model = {"source": {"builtin": "TinyLlama"}}
    job = long_ppo(
        groups,
        models={"actor": model, "critic": {"source": {"sameAs": "actor"}}},
        rollout=ALWAYS,
    )
    _, plan = make_plan(job, [local_inventory(2, 16 * GIB)])
    assert fusion_of(plan) is not None and plan.estimate is not None
    assert plan.call(GraphName.STEP, "actor.finish") is not None
    assert any("rollout.stageFusion says so" in reason for reason in plan.reasons)
