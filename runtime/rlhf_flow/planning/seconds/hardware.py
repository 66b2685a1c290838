"""What one device and its links can do: the constants of the time model.

Peak rates are those of data sheets; shares of them that kernels and NCCL reach were published by
others. None was fitted to what a paper about this kind of job reports. Each field says its unit and
where its default comes from. [MLE] is stas00/ml-engineering (github.com), its tables of measured
matrix products, links and networks.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from rlhf_api.spec.models import Precision
from rlhf_api.spec.resources import Device

USUAL_SHAPES = 0.85
"""Of the fastest product of matrices, what others of the sizes of models reach: a quick search
finds 80 to 90 % of an exhaustive one ([MLE], compute/accelerator/benchmarks)."""


@dataclass(frozen=True)
class Hardware:
    """One kind of device: a GPU, or a process on a core of a CPU."""

    name: str
    """Of the preset, or what its user calls it."""
    device: Device
    """Whether it launches kernels and goes on (GPU), or computes each before the next (CPU)."""
    float32_flops_per_second: float
    """Dense FLOP/s in float32. Of GPUs without TensorFloat-32, which PyTorch leaves off for matrix
    products."""
    bfloat16_flops_per_second: float
    """Dense FLOP/s in bfloat16, without sparsity; as in float32 where there are no tensor cores for
    it."""
    memory_bytes_per_second: float
    """Bandwidth of the device's memory."""
    link_bytes_per_second: float
    """What a device sends to others of its node, in one direction, while it receives as much."""
    network_bytes_per_second: float
    """A device's share of its node's network cards, in one direction."""
    host_bytes_per_second: float
    """Between the device and pinned memory of its host, in one direction; on CPUs to a temporary
    file."""
    matmul_efficiency: float = 0.68
    """Share of the FLOP/s that large products of matrices reach. [MLE], the best of many shapes in
    bfloat16: 0.87 on A100, 0.80 on H100 and H200, 0.78 on B200; other large shapes reach 80 to 90 %
    of the best: `USUAL_SHAPES` of it."""
    matmul_half_tokens: float = 64.0
    """Tokens with which a product reaches half of that: n tokens compute as fast as n / (n + this)
    of it. Kernels work on tiles of 128 rows, of which the last one is half empty on average. Few
    tokens have kernels with smaller tiles: see `LayerRates`."""
    attention_efficiency: float = 0.5
    """Share of the FLOP/s that fused attention reaches. FlashAttention-2 (arXiv 2307.08691) reports
    0.50 to 0.73 on A100; the lower end, as causal masks and short sequences do worse."""
    memory_efficiency: float = 0.83
    """Share of the memory's bandwidth that simple kernels reach. The README of gpt-fast
    (github.com/pytorch-labs) finds about 1.7 of 2.04 TB/s on an A100; of other memories it is an
    estimate."""
    link_efficiency: float = 0.8
    """Share of a link's bandwidth that NCCL's rings reach (bus bandwidth). [MLE]: 235 of 300 GB/s
    on A100, 366 of 450 on H200, 678 of 900 on B200."""
    network_efficiency: float = 0.85
    """The same between nodes. [MLE]: 340 of 400 Gbit/s in all-reduces of AWS's P4 instances."""
    host_efficiency: float = 0.87
    """The same of the host's link. [MLE]: 55 of 63 GB/s over PCIe 5 with 16 lanes."""
    collective_seconds: float = 6.6e-6
    """What a collective takes whatever its size. NCCL's own model (src/graph/tuning.cc,
    baseLatencies): a ring with protocol LL, which it takes for small messages."""
    link_latency_seconds: float = 0.6e-6
    """What each hop within a node adds. The same source (hwLatencies): NVLink 0.6, PCIe 1.0 us."""
    network_latency_seconds: float = 2.7e-6
    """What each hop between nodes adds; the same source."""
    eager_kernel_seconds: float = 5e-6
    """What the host takes to launch one kernel from PyTorch. An estimate: CUDA's own launch takes 4
    to 6 us, and operators are dispatched while the last one is on its way."""
    graph_kernel_seconds: float = 1e-6
    """What each kernel in a CUDA graph adds to its own work. NVIDIA ("Getting started with CUDA
    graphs") finds 0.5 us between kernels of 2.9 us; as much again for their ramp is an estimate."""
    engine_step_seconds: float = 1e-3
    """What vLLM's scheduler and sampler take on the host for a step, while the device waits. An
    estimate: 0.6 spent 29 % of a step on scheduling and 38 %, about 5 ms, on an H100 (vLLM's blog,
    version 0.6.0); later ones hide most of it."""

    def flops_per_second(self, precision: Precision) -> float:
        """Dense FLOP/s in a number format."""
        if precision is Precision.BFLOAT16:
            return self.bfloat16_flops_per_second
        return self.float32_flops_per_second

    def memory_seconds(self, num_bytes: float) -> float:
        """Seconds to read and write so many bytes of the device's memory, both counted."""
        return num_bytes / (self.memory_bytes_per_second * self.memory_efficiency)

    def host_seconds(self, num_bytes: float) -> float:
        """Seconds to bring so many bytes to the host or back."""
        return num_bytes / (self.host_bytes_per_second * self.host_efficiency)


RATES = tuple(each.name for each in fields(Hardware) if each.name.endswith("_per_second"))
"""Fields that are rates: with more of them nothing takes longer."""
SHARES = tuple(each.name for each in fields(Hardware) if each.name.endswith("_efficiency"))
"""Fields that are shares of rates."""
