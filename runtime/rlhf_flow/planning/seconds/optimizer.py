"""One optimizer step, after the last micro-batch.

FSDP's ranks step their rows: 1/n of the parameters each. Megatron's step those of their stage and
tensor part, over the replicas with a distributed optimizer; then they write the format of the
computation (6 bytes for each), and gather it. The norm of all gradients is one small all-reduce.
"""

from __future__ import annotations

from rlhf_api.plan import Mesh
from rlhf_flow.planning.memory import FLOAT32_BYTES
from rlhf_flow.planning.seconds.layers import LayerSeconds
from rlhf_flow.planning.seconds.links import Links


def step_seconds(num_parameters: float, mesh: Mesh, layers: LayerSeconds, links: Links) -> float:
    """Clipping and AdamW's step of so many parameters on each rank.

    Args:
        num_parameters: of a rank.
        mesh: of all ranks, over which the norm is taken.
        layers: of the model.
        links: of the pool.
    """
    everyone = links.group(mesh.first_rank, mesh.num_devices, 1)
    return layers.optimizer(num_parameters) + links.all_reduce_seconds(FLOAT32_BYTES, everyone)


def write_seconds(num_parameters: float, compute_bytes: int, links: Links) -> float:
    """Weights of the computation written from float32 masters; none where they are the same."""
    if compute_bytes == FLOAT32_BYTES:
        return 0.0
    return links.hardware.memory_seconds(num_parameters * (FLOAT32_BYTES + compute_bytes))
