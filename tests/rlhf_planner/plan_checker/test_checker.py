"""The checker notices what is wrong with a plan."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rlhf_api.calls import CallKind
from rlhf_api.plan import CallPlan, Plan
from rlhf_planner.feasibility import first_feasible
from rlhf_planner.plan_builder import build_plan
from rlhf_planner.problem.problem import PlanningProblem

from ..conftest import make_job
from ..search.searched_jobs import gpus, ppo
from .everything import check

Change = Callable[[Plan], dict[str, Any]]


@pytest.fixture(scope="module")
def problem() -> PlanningProblem:
    training = {"engine": "Megatron", "offload": "Always"}
    return ppo(make_job, gpus(4), training=training)


@pytest.fixture(scope="module")
def plan(problem: PlanningProblem) -> Plan:
    return build_plan(first_feasible(problem))


def without(kind: CallKind) -> Change:
    """The plan lacks its first call of a kind."""

    def change(plan: Plan) -> dict[str, Any]:
        first = next(call for call in plan.calls if call.kind is kind)
        return {"calls": tuple(call for call in plan.calls if call is not first)}

    return change


def with_call(kind: CallKind, **update: Any) -> Change:
    """Calls of a kind are otherwise."""

    def change(plan: Plan) -> dict[str, Any]:
        def changed(call: CallPlan) -> CallPlan:
            return call.model_copy(update=update) if call.kind is kind else call

        return {"calls": tuple(map(changed, plan.calls))}

    return change


def cut(**update: int) -> Change:
    """The actor is cut otherwise."""

    def change(plan: Plan) -> dict[str, Any]:
        actor, *others = plan.roles
        assert actor.mesh is not None
        mesh = actor.mesh.model_copy(update=update)
        return {"roles": (actor.model_copy(update={"mesh": mesh}), *others)}

    return change


def with_actor(**update: Any) -> Change:
    return lambda plan: {"roles": (plan.roles[0].model_copy(update=update), *plan.roles[1:])}


def with_engines(**update: Any) -> Change:
    return lambda plan: {"generations": (plan.generations[0].model_copy(update=update),)}


def with_memory(**update: Any) -> Change:
    return lambda plan: {"memory": (plan.memory[0].model_copy(update=update),)}


def test_a_plan_is_found_valid(problem: PlanningProblem, plan: Plan) -> None:
    check(problem, plan)


@pytest.mark.parametrize(
    "change",
    [
        without(CallKind.TRAIN),
        without(CallKind.SCORE),
        without(CallKind.RESHARD),
        without(CallKind.LOAD),
        without(CallKind.OFFLOAD),
        with_call(CallKind.SCORE, mesh=None, role="actor"),
        with_call(CallKind.TRAIN, mesh=None),
        with_call(CallKind.RESHARD, source_mesh=None),
        cut(data=2, tensor=1),
        cut(data=8, tensor=1, pipeline=1),
        cut(data=1, tensor=4, pipeline=1),
        with_actor(micro_batch_tokens=3000),
        with_actor(mesh=None),
        with_engines(kv_cache_bytes=2**20),
        with_engines(role="critic"),
        with_memory(capacity_bytes=2**33),
        with_memory(num_devices=3),
        with_memory(items=()),
    ],
)
def test_what_is_wrong_is_noticed(problem: PlanningProblem, plan: Plan, change: Change) -> None:
    with pytest.raises(AssertionError):
        check(problem, plan.model_copy(update=change(plan)))
