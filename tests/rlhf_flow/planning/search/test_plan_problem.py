"""Plans of jobs on GPUs: found by a search, valid, never slower than simpler rules."""

from __future__ import annotations

from typing import Any

import pytest

from rlhf_flow.errors import DoesNotFit
from rlhf_flow.planning.plan_problem import plan_problem

from ..plan_checker.everything import check
from .searched_jobs import gpus, ppo


def test_roles_are_placed_apart_where_that_is_faster(job: Any) -> None:
    """Decoding a few sequences does not get faster with more devices, so half of these are better
    given to the critic, which works at the same time."""
    problem = ppo(job, gpus(8), schedule={"steps": 1, "promptsPerStep": 8})
    plan = plan_problem(problem)
    assert plan.estimate is not None and plan.search is not None
    colocated = plan.search.alternatives[0]
    assert colocated.name == "Colocated" and colocated.step_seconds is not None
    assert plan.estimate.step_seconds < colocated.step_seconds
    critic, actor = plan.role("critic"), plan.role("actor")
    assert critic is not None and actor is not None and critic.mesh and actor.mesh
    assert not {*critic.mesh.ranks} & {*actor.mesh.ranks}
    assert plan.search.is_optimal
    assert plan.reasons[0].endswith("proved, none of them takes less")


def test_pools_of_several_gpus_are_all_used(job: Any) -> None:
    """What is slow is given less: the actor is on the faster GPUs."""
    problem = ppo(job, gpus(4, gpu="L40S", gibibytes=48, name="slow"), gpus(4, name="fast"))
    plan = plan_problem(problem)
    check(problem, plan)
    actor = plan.role("actor")
    assert actor is not None and actor.mesh is not None and actor.mesh.pool == "fast"


def test_a_placement_that_is_decided_is_kept(job: Any) -> None:
    groups = [
        {"roles": ["actor", "reference"], "devices": 4},
        {"roles": ["critic"], "firstDevice": 4},
    ]
    problem = ppo(job, gpus(8), placement={"type": "Manual", "groups": groups})
    plan = plan_problem(problem)
    check(problem, plan)
    where = {role.role: role.mesh.ranks for role in plan.roles if role.mesh}
    assert where == {"actor": range(4), "reference": range(4), "critic": range(4, 8)}
    assert plan.search is not None and plan.search.num_placements == 1


def test_gpus_of_unknown_speed_are_planned_without_a_search(job: Any) -> None:
    problem = ppo(job, gpus(8).model_copy(update={"gpu": None}))
    plan = plan_problem(problem)
    check(problem, plan)
    assert plan.search is None and plan.estimate is None


def test_what_does_not_fit_is_refused_with_the_sum(job: Any) -> None:
    with pytest.raises(DoesNotFit, match=r"does not fit: got [\d.]+ GiB on each device"):
        plan_problem(ppo(job, gpus(2, 1, 5)))
