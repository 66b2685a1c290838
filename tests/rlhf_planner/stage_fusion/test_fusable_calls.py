"""Which calls may begin before the last response has ended, and why others may not."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from rlhf_api.calls import CallKind
from rlhf_api.plan import CallPlan, GraphName, Plan
from rlhf_flow.trace.graph import Graph
from rlhf_planner.placement.transitions import generation_call
from rlhf_planner.stage_fusion.fusable_calls import fusable_calls, obstacle

from .fused_jobs import APART, FREED, Unfused, mesh_of, unfused


@cache
def apart() -> Unfused:
    return unfused(APART)


@cache
def freed() -> Unfused:
    return unfused(FREED)


def changed(graph: Graph, call: str, **changes: Any) -> Graph:
    """A graph with another call in the place of one."""
    calls = [replace(each, **changes) if each.id == call else each for each in graph.calls]
    edges = [
        replace(edge, target=changes.get("id", edge.target)) if edge.target == call else edge
        for edge in graph.data_edges
    ]
    return replace(graph, calls=tuple(calls), data_edges=tuple(edges))


def why_not(graph: Graph, plan: Plan, call: str) -> str:
    found = obstacle(graph, plan, mesh_of(0, 4), graph.call(call))
    assert found is not None
    return found


def test_roles_elsewhere_and_verifiers_begin_early() -> None:
    _, plan = job = apart()
    graph = job.graph
    assert fusable_calls(graph, plan, mesh_of(0, 4)) == (
        "reward.score",
        "reference.log_probs",
        "critic.values",
    )
    assert why_not(graph, plan, "actor.log_probs") == (
        "engines that finish responses are on its devices"
    )


@pytest.mark.parametrize(
    ("first", "devices", "roles"),
    [
        (0, 8, ["reward", "reference", "critic"]),
        (0, 16, ["reward"]),
        (8, 8, ["reward", "actor"]),
        (12, 4, ["reward", "actor", "reference"]),
        (4, 8, ["reward"]),
    ],
)
def test_devices_of_calls_are_left_free(first: int, devices: int, roles: list[str]) -> None:
    """The actor's own log-probabilities, too, where its trainer is elsewhere."""
    job = freed()
    found = fusable_calls(job.graph, job.plan, mesh_of(first, devices))
    assert [call.partition(".")[0] for call in found] == roles


def test_calls_of_other_kinds_do_not() -> None:
    _, plan = job = apart()
    for call in ("actor.generate", "compute", "critic.train", "actor.train"):
        assert "not Infer or Score" in why_not(job.graph, plan, call)


def test_calls_of_a_region_do_not() -> None:
    _, plan = job = apart()
    graph = changed(job.graph, "critic.values", id="every-2/critic.values")
    assert why_not(graph, plan, "every-2/critic.values") == "not every step runs it"


def test_calls_that_read_more_do_not() -> None:
    _, plan = job = apart()
    reads = ("actor_log_probs", "response_tokens")
    graph = changed(job.graph, "critic.values", reads=reads)
    assert why_not(graph, plan, "critic.values") == (
        "it reads more than what actor.generate gives: actor_log_probs"
    )
    edges = [
        replace(edge, source="actor.log_probs") if edge.target == "critic.values" else edge
        for edge in job.graph.data_edges
    ]
    replaced = replace(job.graph, data_edges=tuple(edges))
    assert why_not(replaced, plan, "critic.values").endswith("gives: actor.log_probs")


def test_roles_that_are_loaded_or_offloaded_do_not() -> None:
    problem, plan = job = apart()
    critic = job.graph.call("critic.values")
    for method, kind in (("load", CallKind.LOAD), ("offload", CallKind.OFFLOAD)):
        beside = generation_call(critic, method, kind)
        calls: list[CallPlan] = []
        for planned in plan.calls:
            update = {"call": beside.id, "kind": kind, "reads": (), "writes": ()}
            own = [planned, planned.model_copy(update=update)]
            is_critic = (planned.graph, planned.call) == (GraphName.STEP, critic.id)
            calls += (own[::-1] if kind is CallKind.LOAD else own) if is_critic else [planned]
        moved = plan.model_copy(update={"calls": tuple(calls)})
        assert why_not(job.graph, moved, critic.id) == (
            "something is loaded or offloaded right before or after it"
        )


def test_scores_that_are_compared_within_a_prompt_are_given_together() -> None:
    """By a reward model: equal responses get equal scores."""
    rollout = {"samplesPerPrompt": 4, "maxPromptTokens": 512, "maxResponseTokens": 512}
    groups = [
        {"roles": ["actor"], "devices": 8},
        {"roles": ["reference"], "firstDevice": 8},
    ]
    grpo = {"type": "GRPO", "grpo": {"klCoefficient": 0.05}}
    models = {"actor": {"source": {"huggingFace": "Qwen/Qwen2.5-7B"}}}
    compared = unfused(groups, algorithm=grpo, rollout=rollout, models=models)
    call = "reference.log_probs"
    engines = compared.plan.generations[0].mesh
    assert fusable_calls(compared.graph, compared.plan, engines)[-1] == call
    scored = changed(compared.graph, call, method="scores")
    assert "equal ones are scored together" in why_not(scored, compared.plan, call)
    alone = apart()
    by_model = changed(alone.graph, call, method="scores")
    assert obstacle(by_model, alone.plan, mesh_of(0, 4), by_model.call(call)) is None


@pytest.mark.parametrize("algorithm", [{"type": "DAPO"}, {"type": "ReMax"}])
def test_steps_that_repeat_or_generate_twice_have_none(algorithm: dict[str, Any]) -> None:
    models = {"actor": {"source": {"huggingFace": "Qwen/Qwen2.5-7B"}}}
    rollout = {"samplesPerPrompt": 4, "maxPromptTokens": 512, "maxResponseTokens": 512}
    groups = [{"roles": ["actor"]}]
    job = unfused(groups, algorithm=algorithm, models=models, rollout=rollout)
    assert fusable_calls(job.graph, job.plan, mesh_of(0, 4)) == ()
    for call in job.graph.calls_of_kind(CallKind.INFER, CallKind.SCORE):
        assert why_not(job.graph, job.plan, call.id).startswith("the step repeats something")
