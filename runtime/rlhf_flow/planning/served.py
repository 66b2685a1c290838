"""What the generation engine can serve of a model, as far as the model's dimensions say it."""

from __future__ import annotations

from rlhf_api.spec.resources import Device
from rlhf_flow.errors import NotOffered
from rlhf_flow.planning.problem import PlanningProblem

CPU_HEAD_SIZES = (32, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)
"""Head sizes for which vLLM's CPU build has an attention kernel; on others its first token fails.
On GPUs one of its backends takes every size. Source: vLLM 0.32, v1/attention/backends/cpu_attn.py
(which leaves 48 out, for which there is a kernel) and platforms/cuda.py."""


def check_served(problem: PlanningProblem) -> None:
    """Refuse a role that generates with a model that the engine has no kernel for.

    Raises:
        NotOffered: with the sizes that there are.
    """
    if problem.device is not Device.CPU:
        return
    for role, facts in problem.models.items():
        if facts.generates and facts.shape.head_dim not in CPU_HEAD_SIZES:
            raise NotOffered(
                f"{role} generates with a model whose attention vLLM cannot compute on CPUs: got "
                f"heads of {facts.shape.head_dim}, allowed "
                f"{', '.join(map(str, CPU_HEAD_SIZES))}; choose a model with such heads "
                "(head_dim in its config.json), or generate on GPUs"
            ).at("spec", "models", role, "source")
