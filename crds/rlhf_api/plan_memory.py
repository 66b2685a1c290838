"""The memory arithmetic of a plan: use of a device's memory in each phase."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field, model_validator

from rlhf_api.base import Contract, Count, Identifier, Name
from rlhf_api.calls import Phase

Bytes = Annotated[int, Field(ge=0, le=2**63 - 1)]


class MemoryUse(StrEnum):
    """Use of device memory."""

    MASTER_WEIGHTS = "MasterWeights"
    """Float32 weights of a trained role: sharded, or Megatron's only weights if it computes in
    float32."""
    OPTIMIZER = "Optimizer"
    """Adam's two moments in float32: sharded, or complete on each Megatron replica."""
    GRADIENTS = "Gradients"
    """Sharded float32 gradients, and gathered ones before their reduction; Megatron's gradient
    buffer in float32."""
    WEIGHTS = "Weights"
    """Weights of a frozen role; for a trained one Megatron's bfloat16 weights."""
    GATHERED = "Gathered"
    """Layers whose weights are gathered at the same time."""
    ACTIVATIONS = "Activations"
    """Activations that a micro-batch keeps for its backward pass, or working memory of a forward
    pass."""
    LOGITS = "Logits"
    """The part of the logits that exists at one time, and the input of the last layer."""
    MASKS = "Masks"
    """Attention masks for responses that share their prompt."""
    GENERATION_WEIGHTS = "GenerationWeights"
    """The generation engine's weights."""
    PACKED_WEIGHTS = "PackedWeights"
    """Packed copies of the generation engine's matrices, on CPUs."""
    KV_CACHE = "KVCache"
    """Keys and values of the sequences in flight."""
    GRAPHS = "Graphs"
    """CUDA graphs of a generation engine, and the workspace of attention."""
    TRANSFER = "Transfer"
    """Staging buffers and checksums of weights on their way from training to generation."""
    CHECKPOINT = "Checkpoint"
    """Copy of a role's state that is written to a checkpoint during training."""
    OVERHEAD = "Overhead"
    """Libraries and contexts of a process; independent of the job."""
    MARGIN = "Margin"
    """Reserve for fragmentation of the allocator."""
    STANDBY = "Standby"
    """Libraries that stay loaded for the next start of workers."""


# Memory uses of a generation engine.
ENGINE_MEMORY = frozenset(
    {
        MemoryUse.GENERATION_WEIGHTS,
        MemoryUse.PACKED_WEIGHTS,
        MemoryUse.KV_CACHE,
        MemoryUse.ACTIVATIONS,
        MemoryUse.LOGITS,
        MemoryUse.GRAPHS,
    }
)


class MemoryItem(Contract):
    """One use of memory on each device."""

    role: Identifier | None
    """The role that uses the memory. None: the process itself."""
    what: MemoryUse
    """Kind of use."""
    bytes: Bytes
    """Bytes on the fullest device."""
    phases: Annotated[tuple[Phase, ...], Field(min_length=1, max_length=64)]
    """Phases in which the memory is in use."""


class PhasePeak(Contract):
    """Memory use of a device in one phase."""

    phase: Phase
    """The phase."""
    bytes: Bytes
    """Sum of the items that are in use in the phase."""


class MemoryPlan(Contract):
    """Memory of one device in the phases of a step. It is the same for all devices of a group,
    which have the same roles."""

    pool: Name
    """The group's pool."""
    first_rank: Annotated[int, Field(ge=0)]
    """First rank of the group within the pool."""
    num_devices: Count
    """Number of devices of the group, which are consecutive."""
    capacity_bytes: Bytes
    """Memory of a device."""
    items: Annotated[tuple[MemoryItem, ...], Field(max_length=512)]
    """All memory uses."""
    peaks: Annotated[tuple[PhasePeak, ...], Field(max_length=64)]
    """Memory use in each phase, in the order in which items name the phases."""

    @model_validator(mode="after")
    def _check_sums(self) -> MemoryPlan:
        # Stored for readers of the JSON, and checked so that the two cannot disagree.
        peaks = phase_peaks(self.items)
        if peaks != self.peaks:
            got, expected = (
                {str(peak.phase): peak.bytes for peak in group} for group in (self.peaks, peaks)
            )
            raise ValueError(f"peaks are not the sums of the items: got {got}, allowed {expected}")
        return self

    @property
    def phases(self) -> tuple[Phase, ...]:
        """All phases that the plan distinguishes."""
        return tuple(peak.phase for peak in self.peaks)

    @property
    def peak_phase(self) -> Phase:
        """The phase with the largest sum; the first of equals."""
        return max(self.peaks, key=lambda peak: peak.bytes).phase

    @property
    def peak_bytes(self) -> int:
        """The largest sum over all phases."""
        return max(peak.bytes for peak in self.peaks)

    @property
    def ranks(self) -> range:
        """Ranks of the group within the pool."""
        return range(self.first_rank, self.first_rank + self.num_devices)


def phase_peaks(items: tuple[MemoryItem, ...]) -> tuple[PhasePeak, ...]:
    """Memory use in each phase, in the order in which items name the phases."""
    return tuple(PhasePeak(phase=phase, bytes=size) for phase, size in sum_by_phase(items).items())


def sum_by_phase(items: tuple[MemoryItem, ...]) -> dict[Phase, int]:
    """Sum of bytes in each phase, in the order in which items name the phases."""
    sums: dict[Phase, int] = {}
    for item in items:
        for phase in item.phases:
            sums[phase] = sums.get(phase, 0) + item.bytes
    return sums
