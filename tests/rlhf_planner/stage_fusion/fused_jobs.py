"""Plans of PPO with roles apart, whose stages may overlap, for tests."""

from __future__ import annotations

from typing import Any, NamedTuple

from rlhf_api.mesh import Mesh
from rlhf_api.plan import GraphName, Plan
from rlhf_api.spec.job import RLHFJob
from rlhf_flow.trace.graph import Graph
from rlhf_planner.cost.fusion import Fusion, fused_plan
from rlhf_planner.problem.problem import PlanningProblem

from ..conftest import make_job
from ..planned_jobs import QWEN, gpus, planned


class Unfused(NamedTuple):
    """What is planned, and its plan."""

    problem: PlanningProblem
    plan: Plan

    @property
    def graph(self) -> Graph:
        """The step's."""
        return self.problem.graphs[GraphName.STEP]

    def fused(self, threshold: int, devices: range, *calls: str) -> Plan:
        """The plan in which engines of these devices finish."""
        engines = self.plan.generations[0].mesh
        update = {"first_rank": devices.start, "data": len(devices) // engines.tensor}
        mesh = engines.model_copy(update=update)
        return fused_plan(self.plan, self.graph, Fusion("actor.generate", mesh, threshold, calls))


def mesh_of(first: int, devices: int) -> Mesh:
    """Ranks of the pool, one beside the other."""
    return Mesh(pool="a", first_rank=first, data=devices)


def long_ppo(groups: list[dict[str, Any]], **sections: Any) -> RLHFJob:
    """PPO of 7B with a reference, and responses of which few are long."""
    return make_job(
        **{
            "models": {"actor": QWEN, "critic": {"source": {"sameAs": "actor"}}},
            "algorithm": {"type": "PPO", "ppo": {"klCoefficient": 0.05}},
            "rollout": {
                "maxPromptTokens": 512,
                "maxResponseTokens": 4096,
                "expectedResponseTokens": 800,
                "parallelism": {"tensor": 1},
            },
            "schedule": {"steps": 1, "promptsPerStep": 256},
            "placement": {"type": "Manual", "groups": groups},
        }
        | sections
    )


APART = [
    {"roles": ["actor"], "devices": 4},
    {"roles": ["reference"], "firstDevice": 4, "devices": 2},
    {"roles": ["critic"], "firstDevice": 6, "devices": 10},
]
"""Each role has devices of its own; the actor generates on its own."""
FREED = [
    {"roles": ["actor"], "calls": ["Train", "Infer"], "devices": 8},
    {"roles": ["actor"], "calls": ["Generate"], "devices": 16},
    {"roles": ["reference"], "firstDevice": 8, "devices": 4},
    {"roles": ["critic"], "firstDevice": 8, "devices": 8},
]
"""The actor generates on all devices; reference and critic are on some of them."""


def unfused(groups: list[dict[str, Any]], **sections: Any) -> Unfused:
    """Its plan on two nodes, without a search."""
    return Unfused(*planned(long_ppo(groups, **sections), gpus(2)))
