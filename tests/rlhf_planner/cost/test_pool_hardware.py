"""What a manifest says of what its devices can do."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from pydantic import ValidationError

from rlhf_api.plan import Pool
from rlhf_api.spec.hardware import HardwareSpec
from rlhf_api.spec.resources import Device, NodePool
from rlhf_flow.errors import DevicesUnknown
from rlhf_planner.cost.hardware import CPU, HARDWARE, Hardware
from rlhf_planner.cost.pool_hardware import pool_hardware
from rlhf_planner.problem.devices import inventory_from_pools

MI300X = {"bfloat16Teraflops": 1307.4, "memoryGigabytesPerSecond": 5300}


def pool(gpu: str | None = "H100", per_node: int = 8, **hardware: Any) -> Pool:
    return Pool(
        name="a",
        device=Device.GPU,
        nodes=2,
        devices_per_node=per_node,
        memory_bytes_per_device=80 * 10**9,
        gpu=gpu,
        hardware=HardwareSpec(**hardware) if hardware else None,
    )


def test_without_it_the_preset_counts() -> None:
    assert pool_hardware(pool()) is HARDWARE["H100"]
    empty = pool().model_copy(update={"hardware": HardwareSpec()})
    assert pool_hardware(empty) is HARDWARE["H100"]


@pytest.mark.parametrize(("per_node", "each"), [(8, 1.5625e9), (4, 3.125e9), (1, 12.5e9)])
def test_devices_share_the_network_of_their_node(per_node: int, each: float) -> None:
    """100 Gbit/s are 12.5 GB/s. Nothing else of the preset changes."""
    found = pool_hardware(pool(per_node=per_node, networkGigabitsPerSecond=100))
    assert found.network_bytes_per_second == pytest.approx(each)
    preset = HARDWARE["H100"]
    name = "H100 (network as given)"
    assert found == replace(
        preset, name=name, network_bytes_per_second=found.network_bytes_per_second
    )


@pytest.mark.parametrize(
    ("field", "value", "name", "expected", "words"),
    [
        ("bfloat16Teraflops", 500, "bfloat16_flops_per_second", 500e12, "FLOP/s"),
        ("float32Teraflops", 50, "float32_flops_per_second", 50e12, "FLOP/s"),
        ("memoryGigabytesPerSecond", 2000, "memory_bytes_per_second", 2e12, "memory bandwidth"),
        ("linkGigabytesPerSecond", 63, "link_bytes_per_second", 63e9, "links"),
        ("hostGigabytesPerSecond", 31.5, "host_bytes_per_second", 31.5e9, "host link"),
        ("matmulEfficiency", 0.5, "matmul_efficiency", 0.5, "efficiency"),
        ("attentionEfficiency", 0.4, "attention_efficiency", 0.4, "efficiency"),
        ("memoryEfficiency", 0.7, "memory_efficiency", 0.7, "efficiency"),
        ("linkEfficiency", 0.6, "link_efficiency", 0.6, "efficiency"),
        ("networkEfficiency", 0.9, "network_efficiency", 0.9, "efficiency"),
        ("hostEfficiency", 0.8, "host_efficiency", 0.8, "efficiency"),
        ("linkLatencyMicroseconds", 2, "link_latency_seconds", 2e-6, "latency"),
        ("networkLatencyMicroseconds", 30, "network_latency_seconds", 3e-5, "latency"),
    ],
)
def test_each_number_replaces_the_presets(
    field: str, value: float, name: str, expected: float, words: str
) -> None:
    found = pool_hardware(pool(**{field: value}))
    changed: dict[str, Any] = {name: getattr(found, name)}
    assert changed[name] == pytest.approx(expected)
    assert found == replace(HARDWARE["H100"], name=f"H100 ({words} as given)", **changed)


def test_every_field_is_taken() -> None:
    fields = dict.fromkeys(HardwareSpec.model_fields, 1.0)
    found = pool_hardware(pool(**fields))
    words = found.name.removeprefix("H100 (").removesuffix(" as given)")
    assert words.split(", ") == [
        *("FLOP/s", "memory bandwidth", "links", "network", "host link", "efficiency", "latency")
    ]


def test_an_unknown_gpu_is_described_by_two_numbers() -> None:
    """For the rest it has float32 at a sixteenth, PCIe 4, and 100 Gbit/s for a node."""
    found = pool_hardware(pool("MI300X", **MI300X))
    assert found == Hardware(
        name="MI300X (as given)",
        device=Device.GPU,
        bfloat16_flops_per_second=1307.4e12,
        float32_flops_per_second=pytest.approx(81.7125e12),
        memory_bytes_per_second=5.3e12,
        link_bytes_per_second=31.5e9,
        network_bytes_per_second=1.5625e9,
        host_bytes_per_second=31.5e9,
    )
    assert pool_hardware(pool(None, **MI300X)).name == "GPU (as given)"


def test_cpus_have_a_preset() -> None:
    cpus = pool(None, memoryGigabytesPerSecond=20).model_copy(update={"device": Device.CPU})
    found = pool_hardware(cpus)
    assert found == replace(
        CPU, name="CPU (memory bandwidth as given)", memory_bytes_per_second=20e9
    )


@pytest.mark.parametrize(
    ("hardware", "missing"),
    [
        ({"networkGigabitsPerSecond": 100}, "bfloat16Teraflops and memoryGigabytesPerSecond"),
        ({"bfloat16Teraflops": 100}, "memoryGigabytesPerSecond"),
        ({"memoryGigabytesPerSecond": 1000}, "bfloat16Teraflops"),
    ],
)
def test_an_unknown_gpu_of_which_too_little_is_said_is_refused(
    hardware: dict[str, float], missing: str
) -> None:
    with pytest.raises(DevicesUnknown, match=f"got gpu MI300X without {missing}, .*add {missing}"):
        pool_hardware(pool("MI300X", **hardware))
    named = NodePool(
        name="a", gpu="MI300X", memory_per_device="192G", hardware=HardwareSpec(**hardware)
    )
    with pytest.raises(DevicesUnknown) as refused:
        inventory_from_pools((named,))
    assert refused.value.location == ("spec", "resources", "nodePools", 0, "hardware")


def test_a_known_gpu_under_another_name_is_suggested() -> None:
    with pytest.raises(DevicesUnknown, match=r"or did you mean gpu: A100-80G\?"):
        pool_hardware(pool("A100-80GB", networkGigabitsPerSecond=100))


def test_pools_of_a_manifest_keep_what_it_says() -> None:
    hardware = HardwareSpec(network_gigabits_per_second=100)
    found = inventory_from_pools((NodePool(name="a", gpu="H100", hardware=hardware),))
    assert found[0].hardware == hardware
    described = NodePool(
        name="a", gpu="MI300X", memory_per_device="192G", hardware=HardwareSpec(**MI300X)
    )
    assert inventory_from_pools((described,))[0].memory_bytes_per_device == 192 * 10**9


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("memoryGigabytesPerSecond", 3.35e12),  # in bytes/s
        ("bfloat16Teraflops", 989e12),
        ("networkGigabitsPerSecond", 0),
        ("networkGigabitsPerSecond", -1),
        ("networkGigabitsPerSecond", float("nan")),
        ("linkGigabytesPerSecond", float("inf")),
        ("matmulEfficiency", 68),  # in per cent
        ("networkLatencyMicroseconds", -1),
    ],
)
def test_what_no_hardware_has_is_refused(field: str, value: float) -> None:
    with pytest.raises(ValidationError):
        HardwareSpec(**{field: value})
