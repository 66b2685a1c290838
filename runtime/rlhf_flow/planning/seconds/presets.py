"""Hardware by name: GPUs as data sheets state them, and a core of a CPU.

Peak rates: NVIDIA's data sheets (SXM where there are several forms), without sparsity; of A10G that
of AWS. Shares that the best products of matrices reach: [MLE] (see hardware.py) for A100, H100,
H200 and B200; github.com/mag-/gpu_benchmark for L40S (252 of 362 TFLOP/s), L4 (91), RTX 4090 (179,
above its data sheet) and A10G (70). Others are estimates and say so.

Networks are not the GPU's: presets have those of NVIDIA's DGX of the same generation (one card for
each GPU), or one card of 100 Gbit/s for eight where there is none. What a
manifest says instead is taken in given_hardware.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from rlhf_api.spec.resources import Device
from rlhf_flow.errors import DevicesUnknown
from rlhf_flow.planning.inventory import similar_gpus
from rlhf_flow.planning.seconds.hardware import USUAL_SHAPES, Hardware

TERA, GIGA = 1e12, 1e9

PCIE_3, PCIE_4, PCIE_5 = 15.75, 31.5, 63.0
"""GB/s of 16 lanes in one direction."""
PCIE_EFFICIENCY = 0.63
"""Of NCCL's rings over PCIe: about 40 of 63 GB/s on eight H100 (docs.alayanew.com, nccl-tests)."""
WITHOUT_PEERS = 0.3
"""Of cards that cannot read each other's memory: all goes through the host's. An estimate."""
SHARED_CARD = 100 / 8 / 8
"""GB/s of each of eight devices with one card of 100 Gbit/s."""


class _Sheet(NamedTuple):
    """TFLOP/s and GB/s of a data sheet; links in one direction."""

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
_H100 = _Sheet(67, 989.4, 3350, 450, 50, PCIE_5, 0.803, 0.34, 0.81)
"""Attention: FlashAttention-2 reaches 335 TFLOP/s on H100; PyTorch has no version 3."""
_V100 = _Sheet(15.7, 15.7, 900, 150, 6.25, PCIE_3, 0.85)
"""No tensor cores for bfloat16. Its share is an estimate."""

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
"""A process on one core: 2.5 GHz with two AVX-512 units and no units for bfloat16, gloo between
processes. Orders of magnitude, to be replaced by a measured profile."""


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
"""All presets."""


def hardware_of(device: Device, gpu: str | None) -> Hardware:
    """The preset of a pool's devices.

    Args:
        device: what ranks compute on.
        gpu: the GPU's name, of a pool of GPUs.

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
