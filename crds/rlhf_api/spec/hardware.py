"""What the devices of a node pool can do, where their user knows it better."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from rlhf_api.base import Contract
from rlhf_api.rules import Rule, violation_if

Teraflops = Annotated[float, Field(gt=0, le=100_000)]
"""10^12 FLOP/s, without sparsity."""
MemoryRate = Annotated[float, Field(gt=0, le=100_000)]
"""GB/s of memory."""
LinkRate = Annotated[float, Field(gt=0, le=10_000)]
"""GB/s of a link, in one direction."""
NetworkRate = Annotated[float, Field(gt=0, le=100_000)]
"""Gbit/s of a node, in one direction."""
Share = Annotated[float, Field(gt=0, le=1)]
"""Of a peak rate, that is reached."""
Latency = Annotated[float, Field(ge=0, le=100_000)]
"""Microseconds."""


class HardwareSpec(Contract):
    """What devices of a node pool and their links can do, for the times that plans are chosen by.
    Rates as data sheets state them, in multiples of 1000.

    What is left out is that of the GPU's model where it is a known one, such as only the network to
    be another. Of other GPUs the first two have to be given.
    """

    validations: ClassVar[tuple[Rule, ...]] = (
        Rule(
            holds="!has(self.float32Teraflops) || !has(self.bfloat16Teraflops) || "
            "self.float32Teraflops <= self.bfloat16Teraflops",
            what="a device that is faster in float32 than in bfloat16",
            allowed="at most bfloat16Teraflops",
            do="correct one of them; without units for bfloat16 both are the same",
            field=".float32Teraflops",
            check=lambda self: violation_if(
                None not in (self.float32_teraflops, self.bfloat16_teraflops)
                and self.float32_teraflops > self.bfloat16_teraflops,
                self.float32_teraflops,
            ),
        ),
    )

    bfloat16_teraflops: Teraflops | None = None
    """Dense TFLOP/s in bfloat16, without sparsity, such as 989. Default: of the GPU's model; of one
    that is not known it has to be given."""
    memory_gigabytes_per_second: MemoryRate | None = None
    """Bandwidth of a device's memory in GB/s, such as 3350. Default: of the GPU's model; of one
    that is not known it has to be given."""
    float32_teraflops: Teraflops | None = None
    """Dense TFLOP/s in float32, without TensorFloat-32. Default of other GPUs: a sixteenth of
    bfloat16Teraflops."""
    link_gigabytes_per_second: LinkRate | None = None
    """What a device sends to others of its node in GB/s, in one direction: half of what data sheets
    say of NVLink. Default of other GPUs: 31.5, PCIe 4."""
    network_gigabits_per_second: NetworkRate | None = None
    """All network cards of a node together in Gbit/s, in one direction, such as 100. Default of
    other GPUs: 100."""
    host_gigabytes_per_second: LinkRate | None = None
    """Between a device and the memory of its host in GB/s, in one direction. Default of other GPUs:
    31.5, PCIe 4."""
    matmul_efficiency: Share | None = None
    """Share of the FLOP/s that large products of matrices reach. Default of other GPUs: 0.68."""
    attention_efficiency: Share | None = None
    """Share of the FLOP/s that attention reaches. Default of other GPUs: 0.5."""
    memory_efficiency: Share | None = None
    """Share of the memory's bandwidth that kernels reach. Default: 0.83."""
    link_efficiency: Share | None = None
    """Share of the links' rate that collectives reach within a node. Default of other GPUs: 0.8."""
    network_efficiency: Share | None = None
    """Share of the network's rate that collectives reach between nodes. Default: 0.85."""
    host_efficiency: Share | None = None
    """Share of the rate that copies to the host reach. Default: 0.87."""
    link_latency_microseconds: Latency | None = None
    """What each hop of a collective within a node takes. Default of other GPUs: 0.6."""
    network_latency_microseconds: Latency | None = None
    """What each hop of a collective between nodes takes. Default: 2.7; over TCP several times
    that."""
