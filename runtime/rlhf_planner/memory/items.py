"""Memory of one device: what it follows from, and what any engine needs.

Every function is arithmetic on shapes; the sums and the search are elsewhere.

Sums of memory for people, and that of a plan that does not fit, item by item.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import ceil

from rlhf_api.calls import Phase
from rlhf_api.plan import Mesh, ModelHead
from rlhf_api.plan_memory import MemoryItem, MemoryUse, sum_by_phase
from rlhf_api.plan_text import describe_item, format_bytes
from rlhf_api.spec.models import Precision, TrainingEngineType
from rlhf_api.spec.resources import Device
from rlhf_sizing.shape import DecoderShape

MIB = 2**20
GIB = 2**30
FLOAT32_BYTES = 4
ADAM_BYTES = 8

PROCESS_BYTES: Mapping[Device, int] = {Device.CPU: 3 * GIB // 4, Device.GPU: 2 * GIB}
"""A rank's libraries whatever the job. CPU: torch, transformers and vLLM imported, measured. GPU:
the CUDA context and NCCL's buffers, an estimate."""
MARGIN = Fraction(2, 100)
"""Share of a GPU's memory that its allocator leaves unused between pieces, an estimate."""
STANDBY_BYTES = GIB // 4
"""What a node's fork server holds for itself. Most pages of its libraries it shares with workers
that it has forked; 50 to 150 MiB were its own beside one and two ranks at work."""


@dataclass(frozen=True)
class RoleModel:
    """A role with a model, as far as memory is concerned."""

    role: str
    """Its name."""
    mesh: Mesh
    """The ranks that hold it."""
    device: Device
    """What they compute on."""
    head: ModelHead
    """What its model ends in."""
    is_trained: bool
    """Whether its weights change."""
    generates: bool
    """Whether it has a generation engine."""
    shape: DecoderShape
    """Its dimensions."""
    precision: Precision
    """float32 or bfloat16."""
    micro_batch_tokens: int
    """Padded tokens that a rank runs through it at once, unless a sequence is longer."""
    peak_tokens: int
    """Padded tokens of the largest micro-batch that this job can have."""
    batch_tokens: int
    """Padded tokens of a replica's share of a step's batch, at most: of all its micro-batches."""
    longest_shared_tokens: int
    """Longest sequence of a prompt and several responses; 0 where none is shared."""
    is_saved: bool
    """Whether checkpoints hold its state."""
    recompute: bool
    """Whether activations are computed again in the backward pass."""
    engine: TrainingEngineType
    """What trains it, or runs it forward."""
    sequence_parallel: bool
    """Whether Megatron's tensor ranks share the tokens where layers are not cut."""
    distributed_optimizer: bool
    """Whether Megatron's replicas share master weights and moments."""

    @property
    def num_parameters(self) -> int:
        """Parameters, exactly."""
        return self.shape.parameters_with(self.head)

    @property
    def compute_bytes(self) -> int:
        """Bytes of a number in the computation."""
        return 2 if self.precision is Precision.BFLOAT16 else FLOAT32_BYTES


@dataclass(frozen=True)
class RolePhases:
    """The phases of some devices, as far as one role is concerned."""

    all: tuple[Phase, ...]
    """Every one in which it is on its devices: all, unless everything of it is offloaded."""
    derived: tuple[Phase, ...]
    """Those in which what follows from its master weights is."""
    infer: tuple[Phase, ...]
    """Its forward passes; empty where there is none."""
    train: tuple[Phase, ...]
    """Its training; empty where there is none."""


Item = tuple[MemoryUse, int, tuple[Phase, ...]]
"""A use of memory, its bytes and its phases."""


def shard_bytes(num_parameters: int, num_shards: int, number_bytes: int) -> int:
    """Bytes of the largest of equal shards."""
    return -(-num_parameters // num_shards) * number_bytes


def process_items(
    device: Device, device_bytes: int, phases: tuple[Phase, ...]
) -> tuple[MemoryItem, ...]:
    """What a rank needs before it has done anything, and what it cannot use.

    Args:
        device: what it computes on.
        device_bytes: memory of each.
        phases: all phases of these devices.
    """
    sizes = {MemoryUse.OVERHEAD: PROCESS_BYTES[device]}
    if device is Device.GPU:
        sizes[MemoryUse.MARGIN] = ceil(device_bytes * MARGIN)
    return tuple(
        MemoryItem(role=None, what=what, bytes=size, phases=phases) for what, size in sizes.items()
    )


def standby_item(devices_per_node: int, phases: tuple[Phase, ...]) -> MemoryItem:
    """A device's share of the process that stands by on its node, where ranks use its memory."""
    return MemoryItem(
        role=None,
        what=MemoryUse.STANDBY,
        bytes=-(-STANDBY_BYTES // devices_per_node),
        phases=phases,
    )


def overflow_message(items: tuple[MemoryItem, ...], capacity: int, setting: str) -> str:
    """Why items do not fit: the fullest phase's sum.

    Args:
        items: of the plan that comes closest.
        capacity: bytes of a device.
        setting: what that plan is, in words.
    """
    sums = sum_by_phase(items)
    phase = max(sums, key=lambda name: sums[name])
    there = sorted((item for item in items if phase in item.phases), key=lambda i: -i.bytes)
    width = max(len(describe_item(item)) for item in there)
    table = [f"  {describe_item(i).ljust(width)}  {format_bytes(i.bytes):>14}" for i in there]
    total = [
        f"  {'sum'.ljust(width)}  {format_bytes(sums[phase]):>14}",
        f"  {'device'.ljust(width)}  {format_bytes(capacity):>14}",
    ]
    return "\n".join(
        [
            f"the job does not fit: got {format_bytes(sums[phase])} on each device during {phase}, "
            f"allowed {format_bytes(capacity)} ({setting})",
            *table,
            *total,
        ]
    )
