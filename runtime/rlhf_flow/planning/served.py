"""What the generation engine can serve of a model, as far as the model's dimensions say it."""

from __future__ import annotations

from collections.abc import Mapping

from rlhf_api.plan import GraphName
from rlhf_api.spec.resources import Device
from rlhf_flow.errors import NotOffered
from rlhf_flow.graph import Graph
from rlhf_flow.job_graphs import job_roles
from rlhf_flow.planning.shapes import DecoderShape

CPU_HEAD_SIZES = (32, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)
"""Head sizes for which vLLM's CPU build has an attention kernel; on others its first token fails.
On GPUs one of its backends takes every size. Source: vLLM 0.32, v1/attention/backends/cpu_attn.py
(which leaves 48 out, for which there is a kernel) and platforms/cuda.py."""


def check_served(
    graphs: Mapping[GraphName, Graph], shapes: Mapping[str, DecoderShape], device: Device
) -> None:
    """Refuse a role that generates with a model that the engine has no kernel for.

    Args:
        graphs: of the job.
        shapes: of every role with a model.
        device: what ranks compute on.

    Raises:
        NotOffered: with the sizes that there are.
    """
    if device is not Device.CPU:
        return
    for role, found in job_roles(graphs).items():
        if found.generates and shapes[role].head_dim not in CPU_HEAD_SIZES:
            raise NotOffered(
                f"{role} generates with a model whose attention vLLM cannot compute on CPUs: got "
                f"heads of {shapes[role].head_dim}, allowed "
                f"{', '.join(map(str, CPU_HEAD_SIZES))}; choose a model with such heads "
                "(head_dim in its config.json), or generate on GPUs"
            ).at("spec", "models", role, "source")
