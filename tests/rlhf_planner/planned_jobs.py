"""Jobs with their problems and plans, for tests of estimates."""

from __future__ import annotations

from typing import Any, NamedTuple

from rlhf_api.plan import Plan, Pool
from rlhf_api.spec.job import RLHFJob
from rlhf_api.spec.resources import Device
from rlhf_flow.jobs.job_graphs import trace_job
from rlhf_planner.evaluate import with_estimate
from rlhf_planner.feasibility import first_feasible
from rlhf_planner.plan import resolve_shapes
from rlhf_planner.plan_builder import build_plan
from rlhf_planner.problem.from_manifest import problem_of
from rlhf_planner.problem.problem import PlanningProblem

GIB = 2**30
QWEN = {"source": {"huggingFace": "Qwen/Qwen2.5-7B"}}
PPO = {"type": "PPO", "ppo": {"klCoefficient": 0.05}}


def gpus(nodes: int = 1, gpu: str | None = "H100", name: str = "a") -> Pool:
    """Nodes of eight GPUs."""
    return Pool(
        name=name,
        device=Device.GPU,
        nodes=nodes,
        devices_per_node=8,
        memory_bytes_per_device=80 * 10**9,
        gpu=gpu,
    )


def cpus(number: int) -> Pool:
    """A machine with so many ranks."""
    return Pool(
        name="a",
        device=Device.CPU,
        nodes=1,
        devices_per_node=number,
        memory_bytes_per_device=8 * GIB,
    )


def large(**changes: Any) -> dict[str, Any]:
    """Sections of a job of 7B with 1,024 responses a step."""
    return {
        "models": {"actor": QWEN},
        "rollout": {"samplesPerPrompt": 8, "maxPromptTokens": 1024, "maxResponseTokens": 1024},
        "schedule": {"steps": 10, "promptsPerStep": 128},
        **changes,
    }


class Planned(NamedTuple):
    """What is planned, and its plan."""

    problem: PlanningProblem
    plan: Plan


def planned(made: RLHFJob, *pools: Pool) -> Planned:
    """The plan of a job without a search: roles are where placement says, or everywhere."""
    graphs = trace_job(made, pools[0].device)
    problem = problem_of(made, graphs, pools, resolve_shapes(made, graphs))
    return Planned(problem, with_estimate(problem, build_plan(first_feasible(problem))))
