"""Memory of one device: its inputs, and what any engine needs.

Every function is arithmetic on shapes; sums and search are elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import ceil

from rlhf_api.calls import Phase
from rlhf_api.mesh import Mesh
from rlhf_api.plan import ModelHead
from rlhf_api.plan_memory import MemoryItem, MemoryUse, sum_by_phase
from rlhf_api.plan_text import describe_item, format_bytes
from rlhf_api.spec.models import Precision, TrainingEngineType
from rlhf_api.spec.resources import Device
from rlhf_sizing.shape import DecoderShape

MIB = 2**20
GIB = 2**30
FLOAT32_BYTES = 4
ADAM_BYTES = 8

# A rank's libraries, whatever the job. CPU: torch, transformers and vLLM imported, measured. GPU:
# the CUDA context and NCCL's buffers, an estimate.
PROCESS_BYTES: Mapping[Device, int] = {Device.CPU: 3 * GIB // 4, Device.GPU: 2 * GIB}
# Share of a GPU's memory that its allocator loses to fragmentation, an estimate.
MARGIN = Fraction(2, 100)
# Memory of a node's fork server. It shares most pages of its libraries with the workers that it has
# forked; 50 to 150 MiB were its own next to one and two ranks at work.
STANDBY_BYTES = GIB // 4


@dataclass(frozen=True)
class RoleModel:
    """A role with a model, as memory and cost see it."""

    role: str
    mesh: Mesh
    """The ranks that hold it."""
    device: Device
    """Device of these ranks."""
    head: ModelHead
    is_trained: bool
    """True if its weights change."""
    generates: bool
    """True if it has a generation engine."""
    shape: DecoderShape
    """Dimensions of its model."""
    precision: Precision
    """float32 or bfloat16."""
    micro_batch_tokens: int
    """Limit of padded tokens in a micro-batch; a longer sequence runs alone."""
    peak_tokens: int
    """Padded tokens of the largest micro-batch of this job."""
    batch_tokens: int
    """Upper bound of padded tokens in a replica's share of a step's batch, over all its
    micro-batches."""
    longest_shared_tokens: int
    """Longest sequence of a prompt and several responses; 0 if prompts are not shared."""
    is_saved: bool
    """True if checkpoints hold its state."""
    recompute: bool
    """True if activations are computed again in the backward pass."""
    engine: TrainingEngineType
    """The engine that trains it, or runs it forward."""
    sequence_parallel: bool
    """True if Megatron's tensor ranks share the tokens in layers that are not cut."""
    distributed_optimizer: bool
    """True if Megatron's replicas share master weights and moments."""
    reads_kept_tokens: bool = False
    """True if it computes log-probabilities of truncated sampling."""

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
    """Phases of a group of devices, from the point of view of one role."""

    all: tuple[Phase, ...]
    """Phases with the role on its devices: all, unless all of it is offloaded."""
    derived: tuple[Phase, ...]
    """Phases with the state that is derived from its master weights."""
    infer: tuple[Phase, ...]
    """Forward passes of the role; at most one phase."""
    train: tuple[Phase, ...]
    """Training of the role; at most one phase."""


# A use of memory, its bytes and its phases.
Item = tuple[MemoryUse, int, tuple[Phase, ...]]


def shard_bytes(num_parameters: int, num_shards: int, number_bytes: int) -> int:
    """Bytes of the largest of equal shards."""
    return -(-num_parameters // num_shards) * number_bytes


def kept_token_bytes(model: RoleModel, vocabulary: int) -> int:
    """Bytes of the tokens that truncated sampling kept, a bit for each token id of a rank's part of
    the vocabulary."""
    return model.peak_tokens * -(-vocabulary // 8) if model.reads_kept_tokens else 0


def process_items(
    device: Device, device_bytes: int, phases: tuple[Phase, ...]
) -> tuple[MemoryItem, ...]:
    """Memory of a rank's process, and the allocator's margin.

    Args:
        device: of the rank.
        device_bytes: memory of each device.
        phases: all phases of these devices.
    """
    sizes = {MemoryUse.OVERHEAD: PROCESS_BYTES[device]}
    if device is Device.GPU:
        sizes[MemoryUse.MARGIN] = ceil(device_bytes * MARGIN)
    return tuple(
        MemoryItem(role=None, what=what, bytes=size, phases=phases) for what, size in sizes.items()
    )


def standby_item(devices_per_node: int, phases: tuple[Phase, ...]) -> MemoryItem:
    """A device's share of its node's fork server."""
    return MemoryItem(
        role=None,
        what=MemoryUse.STANDBY,
        bytes=-(-STANDBY_BYTES // devices_per_node),
        phases=phases,
    )


def overflow_message(items: tuple[MemoryItem, ...], capacity: int, setting: str) -> str:
    """Describe items that do not fit, with a table of the fullest phase.

    Args:
        items: of the plan that comes closest.
        capacity: bytes of a device.
        setting: that plan, in words.
    """
    sums = sum_by_phase(items)
    phase = max(sums, key=lambda name: sums[name])
    in_phase = sorted((item for item in items if phase in item.phases), key=lambda i: -i.bytes)
    width = max(len(describe_item(item)) for item in in_phase)
    table = [f"  {describe_item(i).ljust(width)}  {format_bytes(i.bytes):>14}" for i in in_phase]
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
