"""The memory arithmetic of a plan: what each device holds in which phase."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field, model_validator

from rlhf_api.base import Contract, Count, Identifier, Name
from rlhf_api.calls import Phase

Bytes = Annotated[int, Field(ge=0, le=2**63 - 1)]


class MemoryUse(StrEnum):
    """What memory is used for."""

    MASTER_WEIGHTS = "MasterWeights"
    """Float32 weights of a trained role, sharded or, as Megatron's in float32, its only ones."""
    OPTIMIZER = "Optimizer"
    """Adam's two moments, float32; sharded unless Megatron's replicas each have theirs."""
    GRADIENTS = "Gradients"
    """Sharded float32 gradients and the gathered ones before they are reduced; Megatron's buffer,
    in float32."""
    WEIGHTS = "Weights"
    """A frozen role's weights; of a trained one those that Megatron computes with in bfloat16."""
    GATHERED = "Gathered"
    """The layers that are whole at once, for a computation."""
    ACTIVATIONS = "Activations"
    """What a micro-batch keeps for its backward pass, or a forward pass works on."""
    LOGITS = "Logits"
    """Scores over the vocabulary, as far as they are there at once, and the head's input."""
    MASKS = "Masks"
    """Which tokens see each other where responses share their prompt."""
    GENERATION_WEIGHTS = "GenerationWeights"
    """The generation engine's weights."""
    KV_CACHE = "KVCache"
    """Keys and values of the sequences in flight."""
    GRAPHS = "Graphs"
    """CUDA graphs of a generation engine, and the memory that attention works on."""
    TRANSFER = "Transfer"
    """Staging buffers of weights on their way from training to generation, and their checksums."""
    CHECKPOINT = "Checkpoint"
    """The copy of a role's state that is written while training goes on."""
    OVERHEAD = "Overhead"
    """Libraries and contexts of a process, whatever the job."""
    MARGIN = "Margin"
    """What an allocator cannot use: pieces between those that are used."""
    STANDBY = "Standby"
    """Libraries that stay in memory for the next start of workers."""


ENGINE_MEMORY = frozenset(
    {
        MemoryUse.GENERATION_WEIGHTS,
        MemoryUse.KV_CACHE,
        MemoryUse.ACTIVATIONS,
        MemoryUse.LOGITS,
        MemoryUse.GRAPHS,
    }
)
"""What a generation engine uses memory for."""


class MemoryItem(Contract):
    """One use of memory on each device."""

    role: Identifier | None
    """Whose; None: the process's own."""
    what: MemoryUse
    """What for."""
    bytes: Bytes
    """How much, on the fullest device."""
    phases: Annotated[tuple[Phase, ...], Field(min_length=1, max_length=64)]
    """Those in which it is there."""


class PhasePeak(Contract):
    """What a device holds in a phase."""

    phase: Phase
    """The phase."""
    bytes: Bytes
    """The sum of the items that are there."""


class MemoryPlan(Contract):
    """Memory of one device through the phases of a step, the same for all devices of a group: those
    that hold the same roles."""

    pool: Name
    """The group's pool."""
    first_rank: Annotated[int, Field(ge=0)]
    """Its first rank, as the pool numbers them."""
    num_devices: Count
    """Its devices, one after the other."""
    capacity_bytes: Bytes
    """What a device has."""
    items: Annotated[tuple[MemoryItem, ...], Field(max_length=512)]
    """Every use counted."""
    peaks: Annotated[tuple[PhasePeak, ...], Field(max_length=64)]
    """What is held in each phase, in the order in which the items name them."""

    @model_validator(mode="after")
    def _sums_are_right(self) -> MemoryPlan:
        peaks = phase_peaks(self.items)
        if peaks != self.peaks:
            got, want = (
                {str(peak.phase): peak.bytes for peak in each} for each in (self.peaks, peaks)
            )
            raise ValueError(f"peaks are not the sums of the items: got {got}, want {want}")
        return self

    @property
    def phases(self) -> tuple[Phase, ...]:
        """The phases in which a device's memory differs."""
        return tuple(peak.phase for peak in self.peaks)

    @property
    def peak_phase(self) -> Phase:
        """The phase with the highest sum; the first of equals."""
        return max(self.peaks, key=lambda peak: peak.bytes).phase

    @property
    def peak_bytes(self) -> int:
        """The highest sum."""
        return max(peak.bytes for peak in self.peaks)

    @property
    def ranks(self) -> range:
        """The group's ranks, as the pool numbers them."""
        return range(self.first_rank, self.first_rank + self.num_devices)


def phase_peaks(items: tuple[MemoryItem, ...]) -> tuple[PhasePeak, ...]:
    """What is held in every phase, in the order in which the items name the phases."""
    return tuple(PhasePeak(phase=phase, bytes=size) for phase, size in sum_by_phase(items).items())


def sum_by_phase(items: tuple[MemoryItem, ...]) -> dict[Phase, int]:
    """Bytes of every phase, in the order in which the items name the phases."""
    sums: dict[Phase, int] = {}
    for item in items:
        for phase in item.phases:
            sums[phase] = sums.get(phase, 0) + item.bytes
    return sums
