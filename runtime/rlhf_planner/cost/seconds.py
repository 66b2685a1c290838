"""The parts of a call's time, and optimizer steps.

FSDP's ranks step their rows: 1/n of the parameters each. Megatron's step those of their stage and
tensor part, over the replicas with a distributed optimizer; then they write the format of the
computation (6 bytes for each), and gather it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields

from rlhf_api.mesh import Mesh
from rlhf_planner.cost.collectives import Links
from rlhf_planner.cost.layers import LayerSeconds
from rlhf_planner.memory.role_model import FLOAT32_BYTES


@dataclass(frozen=True)
class CallSeconds:
    """Seconds of a call by cause. Parts do not overlap, and their sum is its time; time that is
    hidden behind something longer is in no part."""

    compute: float = 0.0
    """Products of matrices and attention that the FLOP/s limit."""
    memory: float = 0.0
    """Kernels that the memory's bandwidth limits: weights and cache of decoding, norms, activation
    functions, copies."""
    launch: float = 0.0
    """Launches of kernels and an engine's work on the host, if the device waits for them."""
    tensor_communication: float = 0.0
    """Communication between ranks that share layers."""
    data_communication: float = 0.0
    """Communication between replicas or shards: weights gathered, gradients reduced."""
    stage_communication: float = 0.0
    """Activations and their gradients between pipeline stages."""
    bubble: float = 0.0
    """Idle time of pipeline stages."""
    optimizer: float = 0.0
    """Clipping, AdamW's step, and weights rebuilt from master weights."""
    transfer: float = 0.0
    """Weights or columns on their way to other ranks."""
    host_copy: float = 0.0
    """Copies between devices and their host."""
    tools: float = 0.0
    """Waits of engines for answers of tools, without anything to decode."""

    @property
    def parts(self) -> dict[str, float]:
        """All parts by name, zeros included."""
        return {name: getattr(self, name) for name in PARTS}

    @property
    def total(self) -> float:
        """The sum of all parts."""
        return (
            self.compute
            + self.memory
            + self.launch
            + self.tensor_communication
            + self.data_communication
            + self.stage_communication
            + self.bubble
            + self.optimizer
            + self.transfer
            + self.host_copy
            + self.tools
        )

    @property
    def bottleneck(self) -> str:
        """Name of the largest part; the first of equals."""
        return max(PARTS, key=lambda name: getattr(self, name))

    def times(self, number: float) -> CallSeconds:
        """A multiple of it."""
        return CallSeconds(*(getattr(self, name) * number for name in PARTS))


PARTS = tuple(field.name for field in fields(CallSeconds))


def in_turn(calls: Iterable[CallSeconds]) -> CallSeconds:
    """The sum of calls that run one after the other."""
    rows = [[getattr(call, name) for name in PARTS] for call in calls]
    return CallSeconds(*map(sum, zip(*rows, strict=True))) if rows else CallSeconds()


def step_seconds(num_parameters: float, mesh: Mesh, layers: LayerSeconds, links: Links) -> float:
    """Seconds of clipping and AdamW's step of a number of parameters on each rank.

    Args:
        num_parameters: of a rank.
        mesh: of all ranks, for the norm.
        layers: of the model.
        links: of the pool.
    """
    # The norm of all gradients is one small all-reduce.
    everyone = links.group(mesh.first_rank, mesh.num_devices, 1)
    return layers.optimizer(num_parameters) + links.all_reduce_seconds(FLOAT32_BYTES, everyone)


def write_seconds(num_parameters: float, compute_bytes: int, links: Links) -> float:
    """Seconds to write weights from float32 masters; none if both have the same format."""
    if compute_bytes == FLOAT32_BYTES:
        return 0.0
    return links.hardware.memory_seconds(num_parameters * (FLOAT32_BYTES + compute_bytes))
