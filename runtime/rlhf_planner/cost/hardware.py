"""Rates of one device and its links: the constants of the time model, and presets by name.

Peak rates are those of data sheets; the shares of them that kernels and NCCL reach were published
by others. None was fitted to what a paper about this kind of job reports. Each field gives its unit
and the source of its default. [MLE] is stas00/ml-engineering (github.com), its tables of measured
matrix products, links and networks.

Presets: GPUs as data sheets state them, and a core of a CPU. Peak rates are from NVIDIA's data
sheets (SXM if there are several forms), without sparsity; of A10G from AWS. Shares of the best
products of matrices: [MLE] for A100, H100, H200 and B200; github.com/mag-/gpu_benchmark for L40S
(252 of 362 TFLOP/s), L4 (91), RTX 4090 (179, above its data sheet) and A10G (70). Others are
estimates and say so.

Networks are not the GPU's: presets have those of NVIDIA's DGX of the same generation (one card per
GPU), or else one card of 100 Gbit/s for eight. A manifest's own numbers replace them
(pool_hardware.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import NamedTuple

from rlhf_api.spec.models import Precision
from rlhf_api.spec.resources import Device
from rlhf_flow.errors import DevicesUnknown
from rlhf_planner.cost.engine_host import V1
from rlhf_planner.problem.devices import similar_gpus

# Rate of typical model shapes, relative to the fastest product of matrices: a quick search finds 80
# to 90 % of an exhaustive one ([MLE], compute/accelerator/benchmarks).
USUAL_SHAPES = 0.85


@dataclass(frozen=True)
class Hardware:
    """A kind of device: a GPU, or a process on a core of a CPU."""

    name: str
    """Name of the preset, or the user's name for it."""
    device: Device
    """GPU: kernels are launched ahead; CPU: each is computed before the next."""
    float32_flops_per_second: float
    """Dense FLOP/s in float32. For GPUs without TensorFloat-32, which PyTorch leaves off for matrix
    products."""
    bfloat16_flops_per_second: float
    """Dense FLOP/s in bfloat16, without sparsity; as in float32 if there are no tensor cores for
    it."""
    memory_bytes_per_second: float
    """Bandwidth of the device's memory."""
    link_bytes_per_second: float
    """Bytes per second from a device to others of its node, in one direction, while it receives as
    much."""
    network_bytes_per_second: float
    """A device's share of its node's network cards, in one direction."""
    host_bytes_per_second: float
    """Bytes per second between the device and pinned memory of its host, in one direction; on CPUs
    to a temporary file."""
    matmul_efficiency: float = 0.68
    """Share of the FLOP/s that large products of matrices reach. [MLE], the best of many shapes in
    bfloat16: 0.87 on A100, 0.80 on H100 and H200, 0.78 on B200; other large shapes reach 80 to 90 %
    of the best: `USUAL_SHAPES` of it."""
    matmul_half_tokens: float = 64.0
    """Tokens at which a product reaches half of its rate: n tokens compute at n / (n + this).
    Kernels work on tiles of 128 rows, of which the last is half empty on average. Few tokens use
    kernels with smaller tiles: see `LayerRates`."""
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
    """Seconds of a collective of any size. NCCL's own model (src/graph/tuning.cc, baseLatencies): a
    ring with protocol LL, which it uses for small messages."""
    link_latency_seconds: float = 0.6e-6
    """Additional seconds of each hop within a node. The same source (hwLatencies): NVLink 0.6, PCIe
    1.0 us."""
    network_latency_seconds: float = 2.7e-6
    """Additional seconds of each hop between nodes; the same source."""
    eager_kernel_seconds: float = 5e-6
    """Seconds of the host to launch one kernel from PyTorch. An estimate: CUDA's own launch takes 4
    to 6 us, and operators are dispatched while the last one is in flight."""
    graph_kernel_seconds: float = 1e-6
    """Seconds that each kernel in a CUDA graph adds to its own work. NVIDIA ("Getting started with
    CUDA graphs") finds 0.5 us between kernels of 2.9 us; as much again for their ramp is an
    estimate."""
    engine_step_seconds: float = V1.step
    """Seconds of vLLM's scheduler and sampler on the host per step, while the device waits; see
    engine_host.py."""
    engine_sequence_seconds: float = V1.sequence
    """Additional seconds for each sequence of a step; see engine_host.py."""

    def flops_per_second(self, precision: Precision) -> float:
        """Dense FLOP/s in a number format."""
        if precision is Precision.BFLOAT16:
            return self.bfloat16_flops_per_second
        return self.float32_flops_per_second

    def memory_seconds(self, num_bytes: float) -> float:
        """Seconds to read and write a number of bytes of the device's memory, both counted."""
        return num_bytes / (self.memory_bytes_per_second * self.memory_efficiency)

    def host_seconds(self, num_bytes: float) -> float:
        """Seconds to copy a number of bytes to the host or back."""
        return num_bytes / (self.host_bytes_per_second * self.host_efficiency)


# Rates: higher ones never make anything slower.
RATES = tuple(field.name for field in fields(Hardware) if field.name.endswith("_per_second"))
# Shares of the rates that kernels and collectives reach.
SHARES = tuple(field.name for field in fields(Hardware) if field.name.endswith("_efficiency"))


TERA, GIGA = 1e12, 1e9

# GB/s of 16 lanes in one direction.
PCIE_3, PCIE_4, PCIE_5 = 15.75, 31.5, 63.0
# Share that NCCL's rings reach over PCIe: about 40 of 63 GB/s on eight H100 (docs.alayanew.com,
# nccl-tests).
PCIE_EFFICIENCY = 0.63
# The same for cards that cannot read each other's memory: all traffic goes through the host's. An
# estimate.
WITHOUT_PEERS = 0.3
# GB/s of each of eight devices with one card of 100 Gbit/s.
SHARED_CARD = 100 / 8 / 8


class _Sheet(NamedTuple):
    """TFLOP/s and GB/s of a data sheet; links and network in one direction."""

    float32: float
    bfloat16: float
    memory: float
    link: float
    network: float
    host: float
    best_matmul: float = 0.8
    attention: float = 0.5
    link_efficiency: float = 0.8
    hop: float = 0.6e-6


def _pcie(
    float32: float,
    bfloat16: float,
    memory: float,
    lanes: float,
    best_matmul: float,
    efficiency: float = PCIE_EFFICIENCY,
) -> _Sheet:
    """A card without NVLink."""
    return _Sheet(
        float32, bfloat16, memory, lanes, SHARED_CARD, lanes, best_matmul, 0.5, efficiency, 1.0e-6
    )


_A100 = _Sheet(19.5, 312, 2039, 300, 25, PCIE_4, 0.869, link_efficiency=0.78)
# Attention: FlashAttention-2 reaches 335 TFLOP/s on H100; PyTorch has no version 3.
_H100 = _Sheet(67, 989.4, 3350, 450, 50, PCIE_5, 0.803, 0.34, 0.81)
# No tensor cores for bfloat16. Its share is an estimate.
_V100 = _Sheet(15.7, 15.7, 900, 150, 6.25, PCIE_3, 0.85)

_SHEETS: Mapping[str, _Sheet] = {
    "T4": _pcie(8.1, 8.1, 320, PCIE_3, 0.85),  # no bfloat16; the share is an estimate
    "V100-16G": _V100,
    "V100-32G": _V100,
    "A10": _pcie(31.2, 125, 600, PCIE_4, 0.7),  # an estimate: 150 W do not hold its clock
    "A10G": _pcie(35, 70, 600, PCIE_4, 0.99),
    "L4": _pcie(30.3, 121, 300, PCIE_4, 0.755),
    "RTX-4090": _pcie(82.6, 165.2, 1008, PCIE_4, 1.0, WITHOUT_PEERS),
    "A100-40G": _A100._replace(memory=1555),
    # Of the GA102 of A40 and RTX A6000 the share of an RTX A5000, 94 of 111 TFLOP/s. Their NVLink
    # joins pairs only: rings of more go over PCIe.
    "A40": _pcie(37.4, 149.7, 696, PCIE_4, 0.845),
    "L40S": _pcie(91.6, 362.05, 864, PCIE_4, 0.696),
    "RTX-A6000": _pcie(38.7, 154.8, 768, PCIE_4, 0.845),
    "A100-80G": _A100,
    "H100": _H100,
    "H100-80G": _H100,
    "H200": _H100._replace(memory=4800),
    # Attention: an estimate, FlashAttention-2 does not use its tensor cores' new instructions.
    "B200": _Sheet(80, 2250, 8000, 900, 50, PCIE_5, 0.776, 0.2, 0.75),
}

# A process on one core: 2.5 GHz with two AVX-512 units and no units for bfloat16, gloo between
# processes. Orders of magnitude, to be replaced by a measured profile.
CPU = Hardware(
    name="CPU",
    device=Device.CPU,
    float32_flops_per_second=160 * GIGA,
    bfloat16_flops_per_second=160 * GIGA,
    memory_bytes_per_second=15 * GIGA,
    link_bytes_per_second=1 * GIGA,
    network_bytes_per_second=1 * GIGA,
    host_bytes_per_second=1 * GIGA,
    matmul_efficiency=0.9,
    matmul_half_tokens=16.0,
    attention_efficiency=0.25,
    memory_efficiency=0.8,
    link_efficiency=0.6,
    collective_seconds=1e-4,
    link_latency_seconds=5e-5,
    network_latency_seconds=1e-4,
    eager_kernel_seconds=5e-6,
    graph_kernel_seconds=5e-6,
    engine_step_seconds=2e-3,
)


def _gpu(name: str, sheet: _Sheet) -> Hardware:
    return Hardware(
        name=name,
        device=Device.GPU,
        float32_flops_per_second=sheet.float32 * TERA,
        bfloat16_flops_per_second=sheet.bfloat16 * TERA,
        memory_bytes_per_second=sheet.memory * GIGA,
        link_bytes_per_second=sheet.link * GIGA,
        network_bytes_per_second=sheet.network * GIGA,
        host_bytes_per_second=sheet.host * GIGA,
        matmul_efficiency=sheet.best_matmul * USUAL_SHAPES,
        attention_efficiency=sheet.attention,
        link_efficiency=sheet.link_efficiency,
        link_latency_seconds=sheet.hop,
    )


HARDWARE: Mapping[str, Hardware] = {
    **{name: _gpu(name, sheet) for name, sheet in _SHEETS.items()},
    CPU.name: CPU,
}


def hardware_of(device: Device, gpu: str | None) -> Hardware:
    """The preset of a pool's devices.

    Args:
        device: of the ranks.
        gpu: the GPU's name, for a pool of GPUs.

    Raises:
        DevicesUnknown: a GPU without a preset.
    """
    if device is Device.CPU:
        return CPU
    if gpu is not None and gpu in _SHEETS:
        return HARDWARE[gpu]
    near = " or ".join(similar_gpus(gpu or ""))
    advice = f"did you mean {near}? Else" if near else "name one of these or"
    raise DevicesUnknown(
        f"how fast a device is is unknown: got gpu {gpu or 'none'}, allowed {', '.join(_SHEETS)}; "
        f"{advice} say what it can do in resources.nodePools[].hardware"
    )
