"""Jobs to plan on GPUs whose speed is known."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlhf_api.plan import Pool
from rlhf_api.spec.resources import Device
from rlhf_flow.jobs.job_graphs import trace_job
from rlhf_planner.plan import resolve_shapes
from rlhf_planner.problem.from_manifest import problem_of
from rlhf_planner.problem.problem import PlanningProblem

GIB = 2**30


def gpus(
    count: int, nodes: int = 1, gibibytes: float = 80, gpu: str = "H100", name: str = "pool"
) -> Pool:
    """Nodes of so many GPUs each."""
    return Pool(
        name=name,
        device=Device.GPU,
        nodes=nodes,
        devices_per_node=count,
        memory_bytes_per_device=int(gibibytes * GIB),
        gpu=gpu,
    )


def ppo(
    job: Any,
    *pools: Pool,
    training: Mapping[str, Any] | None = None,
    model: str = "Qwen/Qwen2.5-1.5B",
    **sections: Any,
) -> PlanningProblem:
    """PPO with a reference: three roles with a model, one of which generates."""
    made = job(
        **{
            "models": {
                "actor": {"source": {"huggingFace": model}, "training": training or {}},
                "critic": {"source": {"sameAs": "actor"}, "training": training or {}},
            },
            "algorithm": {"type": "PPO", "ppo": {"klCoefficient": 0.05}},
            "rollout": {"maxPromptTokens": 512, "maxResponseTokens": 512},
            "schedule": {"steps": 1, "promptsPerStep": 256},
        }
        | sections
    )
    graphs = trace_job(made, Device.GPU)
    return problem_of(made, graphs, pools, resolve_shapes(made, graphs))
