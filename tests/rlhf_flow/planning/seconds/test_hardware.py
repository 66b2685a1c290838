"""Hardware that users describe, and the presets."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from rlhf_api.spec.models import Precision
from rlhf_api.spec.resources import Device
from rlhf_flow.errors import DevicesUnknown
from rlhf_flow.planning.inventory import GPU_MEMORY_BYTES
from rlhf_flow.planning.seconds.hardware import RATES, SHARES, Hardware, hardware_from
from rlhf_flow.planning.seconds.presets import CPU, HARDWARE, hardware_of

OWN = {
    "name": "MI300X",
    "device": "GPU",
    "float32_flops_per_second": 163.4e12,
    "bfloat16_flops_per_second": 1300e12,
    "memory_bytes_per_second": 5.3e12,
    "link_bytes_per_second": 448e9,
    "network_bytes_per_second": 50e9,
    "host_bytes_per_second": 63e9,
}


def test_every_gpu_whose_memory_is_known_has_a_preset() -> None:
    for name in GPU_MEMORY_BYTES:
        found = hardware_of(Device.GPU, name)
        assert (found.name, found.device) == (name, Device.GPU)
    assert {*HARDWARE} == {*GPU_MEMORY_BYTES, "CPU"}
    assert hardware_of(Device.CPU, None) is CPU


@pytest.mark.parametrize("name", HARDWARE)
def test_presets_are_possible(name: str) -> None:
    """What a user would have to write for the same is accepted, and rates are in FLOP/s and
    bytes/s, not in multiples: a device computes more FLOP than it reads bytes."""
    preset = HARDWARE[name]
    assert hardware_from(dataclasses.asdict(preset)) == preset
    assert preset.flops_per_second(Precision.FLOAT32) == preset.float32_flops_per_second
    assert preset.flops_per_second(Precision.BFLOAT16) >= preset.float32_flops_per_second
    assert preset.float32_flops_per_second > preset.memory_bytes_per_second > 1e10
    assert preset.memory_bytes_per_second > preset.link_bytes_per_second
    assert preset.link_bytes_per_second >= preset.network_bytes_per_second > 1e8


@pytest.mark.parametrize(
    ("name", "bfloat16", "memory", "link"),
    [
        ("A100-80G", 312e12, 2039e9, 600e9 / 2),
        ("A100-40G", 312e12, 1555e9, 600e9 / 2),
        ("H100", 1979e12 / 2, 3350e9, 900e9 / 2),
        ("H200", 1979e12 / 2, 4800e9, 900e9 / 2),
        ("B200", 4500e12 / 2, 8000e9, 1800e9 / 2),
        ("L40S", 362.05e12, 864e9, 64e9 / 2),
    ],
)
def test_presets_are_the_data_sheets(
    name: str, bfloat16: float, memory: float, link: float
) -> None:
    """As these state them: FLOP/s of Hopper and later with sparsity, links of both directions."""
    preset = HARDWARE[name]
    assert preset.bfloat16_flops_per_second == pytest.approx(bfloat16, rel=0.001)
    assert preset.memory_bytes_per_second == pytest.approx(memory, rel=0.001)
    assert preset.link_bytes_per_second == pytest.approx(link, rel=0.02)


def test_seconds_of_bytes() -> None:
    a100 = HARDWARE["A100-80G"]
    assert a100.memory_seconds(2.039e12 * 0.83) == pytest.approx(1.0)
    assert a100.host_seconds(31.5e9 * 0.87) == pytest.approx(1.0)


def test_a_user_describes_hardware() -> None:
    own = hardware_from(OWN)
    assert (own.name, own.device, own.memory_bytes_per_second) == ("MI300X", Device.GPU, 5.3e12)
    assert own.matmul_efficiency == Hardware.matmul_efficiency
    faster = hardware_from({"network_bytes_per_second": 100e9}, like=own)
    assert faster == dataclasses.replace(own, network_bytes_per_second=100e9)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"memory_bandwidth": 1}, ("unknown field", "got memory_bandwidth", "leave it out")),
        ({"memory_byte_per_second": 1}, ("did you mean memory_bytes_per_second?",)),
        ({"link_bytes_per_second": 0}, ("got 0,", "above 0", "bytes/s")),
        ({"link_bytes_per_second": "300GB"}, ("got '300GB'", "allowed a number above 0")),
        ({"host_bytes_per_second": float("inf")}, ("got inf",)),
        ({"host_bytes_per_second": float("nan")}, ("got nan",)),
        ({"matmul_efficiency": 1.5}, ("got 1.5", "at most 1")),
        ({"link_latency_seconds": -1}, ("got -1", "at least 0")),
        ({"link_latency_seconds": True}, ("got True",)),
        ({"device": "TPU"}, ("got 'TPU'", "GPU, CPU")),
        ({"name": ""}, ("got ''", "any text")),
    ],
)
def test_what_no_hardware_has_is_refused(change: dict[str, Any], said: tuple[str, ...]) -> None:
    with pytest.raises(DevicesUnknown) as refused:
        hardware_from({**OWN, **change})
    assert all(part in str(refused.value) for part in said), str(refused.value)


@pytest.mark.parametrize("name", [*RATES, "name", "device"])
def test_what_is_missing_is_named(name: str) -> None:
    left = {key: value for key, value in OWN.items() if key != name}
    with pytest.raises(DevicesUnknown, match=f"add {name}, or begin with a preset"):
        hardware_from(left)


def test_an_unknown_gpu_is_refused_with_those_that_are_near() -> None:
    with pytest.raises(DevicesUnknown, match="got gpu A100-80GB.*did you mean A100-80G"):
        hardware_of(Device.GPU, "A100-80GB")
    with pytest.raises(DevicesUnknown, match="got gpu none"):
        hardware_of(Device.GPU, None)


def test_fields_are_sorted_by_what_they_may_be() -> None:
    assert len(RATES) == 6 and len(SHARES) == 6
