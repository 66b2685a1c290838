"""Performance of a node pool's devices, stated by the user."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from rlhf_api.base import Contract
from rlhf_api.rules import Rule, violation_if

# 10^12 FLOP/s, without sparsity.
Teraflops = Annotated[float, Field(gt=0, le=100_000)]
# GB/s of memory.
MemoryRate = Annotated[float, Field(gt=0, le=100_000)]
# GB/s of a link, in one direction.
LinkRate = Annotated[float, Field(gt=0, le=10_000)]
# Gbit/s of a node, in one direction.
NetworkRate = Annotated[float, Field(gt=0, le=100_000)]
# Reached share of a peak rate.
Efficiency = Annotated[float, Field(gt=0, le=1)]
# Microseconds.
Latency = Annotated[float, Field(ge=0, le=100_000)]


class HardwareSpec(Contract):
    """Performance of a node pool's devices and links, for estimates of times. Rates are peak values
    of data sheets, in multiples of 1000.

    Defaults are those of the GPU's model, if it is supported. For other GPUs bfloat16Teraflops and
    memoryGigabytesPerSecond are required.
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
    """Dense TFLOP/s in bfloat16, without sparsity, such as 989. Default: that of the GPU's model;
    required for other GPUs."""
    memory_gigabytes_per_second: MemoryRate | None = None
    """Bandwidth of a device's memory in GB/s, such as 3350. Default: that of the GPU's model;
    required for other GPUs."""
    float32_teraflops: Teraflops | None = None
    """Dense TFLOP/s in float32, without TensorFloat-32. Default of other GPUs: a sixteenth of
    bfloat16Teraflops."""
    link_gigabytes_per_second: LinkRate | None = None
    """Bandwidth from a device to others of its node in GB/s, in one direction: half of the NVLink
    figure in data sheets. Default of other GPUs: 31.5, PCIe 4."""
    network_gigabits_per_second: NetworkRate | None = None
    """Bandwidth of all network cards of a node together in Gbit/s, in one direction, such as 100.
    Default of other GPUs: 100."""
    host_gigabytes_per_second: LinkRate | None = None
    """Bandwidth between a device and host memory in GB/s, in one direction. Default of other GPUs:
    31.5, PCIe 4."""
    matmul_efficiency: Efficiency | None = None
    """Share of peak FLOP/s that large matrix products reach. Default of other GPUs: 0.68."""
    attention_efficiency: Efficiency | None = None
    """Share of peak FLOP/s that attention reaches. Default of other GPUs: 0.5."""
    memory_efficiency: Efficiency | None = None
    """Share of the memory bandwidth that kernels reach. Default: 0.83."""
    link_efficiency: Efficiency | None = None
    """Share of the link bandwidth that collectives within a node reach. Default of other GPUs:
    0.8."""
    network_efficiency: Efficiency | None = None
    """Share of the network bandwidth that collectives between nodes reach. Default: 0.85."""
    host_efficiency: Efficiency | None = None
    """Share of the host bandwidth that copies reach. Default: 0.87."""
    link_latency_microseconds: Latency | None = None
    """Latency of each hop of a collective within a node. Default of other GPUs: 0.6."""
    network_latency_microseconds: Latency | None = None
    """Latency of each hop of a collective between nodes. Default: 2.7; TCP needs several times
    that."""
