"""Hardware of a pool's devices, from presets and `resources.nodePools[].hardware`. Pure.

The manifest's numbers replace those of the GPU's preset. The manifest alone describes a GPU without
a preset.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from rlhf_api.plan import Pool
from rlhf_api.spec.hardware import HardwareSpec
from rlhf_api.spec.objective import PlacementObjective
from rlhf_api.spec.resources import Device, NodePool
from rlhf_flow.errors import DevicesUnknown, TimesUnknown
from rlhf_planner.cost.hardware import CPU, GIGA, HARDWARE, PCIE_4, TERA, Hardware, hardware_of
from rlhf_planner.problem.devices import check_described

# Default of the FLOP/s in float32, as a share of bfloat16: 1/16 on A100, 1/15 on H100.
FLOAT32_SHARE = 1 / 16
# Default network of a node, per second.
NODE_NETWORK_GIGABITS = 100.0
# Characters of a GPU's name that plans show.
LONGEST_NAME = 64
BITS = 8
MICRO = 1e-6

# Names of fields of `Hardware` for people, by the ends of the fields' names.
_WORDS = {
    "_flops_per_second": "FLOP/s",
    "memory_bytes_per_second": "memory bandwidth",
    "link_bytes_per_second": "links",
    "network_bytes_per_second": "network",
    "host_bytes_per_second": "host link",
    "_efficiency": "efficiency",
    "_latency_seconds": "latency",
}


def pool_hardware(pool: Pool | NodePool) -> Hardware:
    """The hardware of a pool's devices; its name says where the numbers come from.

    Raises:
        DevicesUnknown: an unknown GPU that the manifest does not describe enough.
    """
    values = manifest_values(pool.hardware or HardwareSpec(), pool.devices_per_node)
    if not values:
        return hardware_of(pool.device, pool.gpu)
    preset = CPU if pool.device is Device.CPU else HARDWARE.get(pool.gpu or "")
    if preset is not None:
        words = ", ".join(dict.fromkeys(map(_word, values)))
        return replace(preset, name=f"{preset.name} ({words} as given)", **values)
    return _described(pool, values)


def manifest_values(spec: HardwareSpec, devices_per_node: int) -> dict[str, Any]:
    """The manifest's numbers, by the names and in the units of `Hardware`.

    Args:
        spec: of a pool.
        devices_per_node: of the pool.
    """
    network = spec.network_gigabits_per_second
    values = {
        "bfloat16_flops_per_second": _times(spec.bfloat16_teraflops, TERA),
        "float32_flops_per_second": _times(spec.float32_teraflops, TERA),
        "memory_bytes_per_second": _times(spec.memory_gigabytes_per_second, GIGA),
        "link_bytes_per_second": _times(spec.link_gigabytes_per_second, GIGA),
        # The manifest's network is that of a node, which its devices share.
        "network_bytes_per_second": _times(network, GIGA / BITS / devices_per_node),
        "host_bytes_per_second": _times(spec.host_gigabytes_per_second, GIGA),
        "matmul_efficiency": spec.matmul_efficiency,
        "attention_efficiency": spec.attention_efficiency,
        "memory_efficiency": spec.memory_efficiency,
        "link_efficiency": spec.link_efficiency,
        "network_efficiency": spec.network_efficiency,
        "host_efficiency": spec.host_efficiency,
        "link_latency_seconds": _times(spec.link_latency_microseconds, MICRO),
        "network_latency_seconds": _times(spec.network_latency_microseconds, MICRO),
    }
    return {name: value for name, value in values.items() if value is not None}


def _times(value: float | None, unit: float) -> float | None:
    return None if value is None else value * unit


def _described(pool: Pool | NodePool, values: dict[str, Any]) -> Hardware:
    """An unknown GPU that the manifest describes; defaults as in `HardwareSpec`."""
    check_described(pool.name, pool.gpu, pool.hardware)
    of_node = NODE_NETWORK_GIGABITS * GIGA / BITS
    values = {
        "float32_flops_per_second": values["bfloat16_flops_per_second"] * FLOAT32_SHARE,
        "link_bytes_per_second": PCIE_4 * GIGA,
        "network_bytes_per_second": of_node / pool.devices_per_node,
        "host_bytes_per_second": PCIE_4 * GIGA,
    } | values
    name = (pool.gpu or "GPU")[:LONGEST_NAME]
    return Hardware(name=f"{name} (as given)", device=pool.device, **values)


def _word(name: str) -> str:
    return next(word for end, word in _WORDS.items() if name.endswith(end))


def require_comparable(pools: Sequence[Pool | NodePool]) -> None:
    """Check that the speed of devices is known, and that overlap can gain time there.

    Raises:
        DevicesUnknown: it is not.
    """
    for pool in pools:
        if pool.device is Device.CPU:
            raise DevicesUnknown(
                "processes on CPUs share cores, so that plans which overlap gain nothing there: "
                "got device CPU, allowed GPUs whose rates are known; name pools of GPUs"
            )
        pool_hardware(pool)


def require_times(objective: PlacementObjective, pools: Sequence[Pool | NodePool]) -> None:
    """Check that an objective which compares times can be evaluated on some devices.

    Raises:
        TimesUnknown: there are no times for them.
    """
    try:
        require_comparable(pools)
    except DevicesUnknown as error:
        raise TimesUnknown(
            f"placement.objective {objective.type.value} compares times, and there are none to "
            f"compare: {error}; or write placement.objective.type: StepTime, with "
            "placement.maxDevices if the job is to take fewer devices"
        ).at("spec", "placement", "objective", "type") from error
