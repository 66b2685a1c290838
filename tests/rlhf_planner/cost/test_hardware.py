"""The presets."""

from __future__ import annotations

import pytest

from rlhf_api.spec.models import Precision
from rlhf_api.spec.resources import Device
from rlhf_flow.errors import DevicesUnknown
from rlhf_planner.cost.hardware import CPU, HARDWARE, RATES, SHARES, hardware_of
from rlhf_planner.problem.devices import GPU_MEMORY_BYTES


def test_every_gpu_whose_memory_is_known_has_a_preset() -> None:
    for name in GPU_MEMORY_BYTES:
        found = hardware_of(Device.GPU, name)
        assert (found.name, found.device) == (name, Device.GPU)
    assert {*HARDWARE} == {*GPU_MEMORY_BYTES, "CPU"}
    assert hardware_of(Device.CPU, None) is CPU


@pytest.mark.parametrize("name", HARDWARE)
def test_presets_are_possible(name: str) -> None:
    """Rates are in FLOP/s and bytes/s, not in multiples: a device computes more FLOP than it reads
    bytes."""
    preset = HARDWARE[name]
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


def test_an_unknown_gpu_is_refused_with_those_that_are_near() -> None:
    with pytest.raises(DevicesUnknown, match="got gpu A100-80GB.*did you mean A100-80G"):
        hardware_of(Device.GPU, "A100-80GB")
    with pytest.raises(DevicesUnknown, match=r"got gpu none.*or say what it can do in .*hardware"):
        hardware_of(Device.GPU, None)


def test_fields_are_sorted_by_what_they_may_be() -> None:
    assert len(RATES) == 6 and len(SHARES) == 6
