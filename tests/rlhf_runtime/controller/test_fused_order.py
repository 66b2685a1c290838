"""Ranks are sent the calls of a fused step in the order in which its estimate has them."""

from __future__ import annotations

import pytest

from rlhf_api.calls import CallKind
from rlhf_api.mesh import Mesh
from rlhf_planner.simulation.step_tasks import EARLY, LATE, site_of, step_tasks
from rlhf_runtime.dataplane.partition import RowSubset

from .test_stage_fusion import HOST, World, planned, run_step

OF_KIND = {
    CallKind.GENERATE: RowSubset.FINISHED,
    CallKind.FINISH: RowSubset.UNFINISHED,
    CallKind.RELEASE: RowSubset.ALL,
}
OF_PART = {EARLY: RowSubset.FINISHED, LATE: RowSubset.UNFINISHED}


@pytest.mark.parametrize(("first", "finishing"), [(0, 1), (0, 2), (1, 1)])
def test_estimate_and_runtime_have_one_order(first: int, finishing: int) -> None:
    """The actor is on ranks 0 and 1 of four, and generates on all of them; some finish."""
    groups = [
        {"roles": ["actor"], "devices": 2},
        {"roles": ["reference"], "firstDevice": 2, "devices": 2},
        {"roles": ["critic"], "firstDevice": 3, "devices": 1},
        {"roles": ["actor"], "calls": ["Generate"], "devices": 4},
    ]
    finish = Mesh(pool="local", first_rank=first, data=finishing)
    graph, plan = planned(4, finish, groups)
    world = World(plan, frozenset({0, 1, 5}))
    run_step(graph, world, 4, 4)
    kinds = {call.call: call.kind for call in plan.calls}
    for rank in range(4):
        expected = []
        for task in step_tasks(graph, plan, {}):
            site = site_of(task.id)
            subset = OF_KIND.get(kinds[site], OF_PART.get(task.id.removeprefix(site)))
            if any(rank in part.ranks for part in task.ranks):
                expected.append((site, subset or RowSubset.ALL))
        assert [each[1:] for each in world.sent if each[0] == rank] == expected
    assert any(each[0] == HOST for each in world.sent)
