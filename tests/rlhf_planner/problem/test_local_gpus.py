"""The GPUs of this machine."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rlhf_api.spec.resources import Device
from rlhf_flow.errors import DevicesUnknown
from rlhf_planner.problem.devices import gpu_inventory, gpu_memory_bytes, gpu_name, parse_memory

MIB = 2**20


def test_memory_is_read_line_by_line() -> None:
    assert parse_memory("143771\n81559\n") == (143771 * MIB, 81559 * MIB)
    assert parse_memory("No devices were found\n") == ()


@pytest.mark.parametrize(
    ("script", "expected"),
    [("echo 1000; echo 2000", (1000 * MIB, 2000 * MIB)), ("echo broken; exit 9", ())],
)
def test_the_drivers_command_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, expected: tuple[int, ...]
) -> None:
    command = tmp_path / "nvidia-smi"
    command.write_text(f"#!/bin/sh\n{script}\n")
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert gpu_memory_bytes() == expected


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ("NVIDIA H200\nNVIDIA H200", "H200"),
        ("NVIDIA A100-SXM4-80GB", "A100-80G"),
        ("NVIDIA H100 80GB HBM3", "H100-80G"),
        ("NVIDIA GeForce RTX 4090", "RTX-4090"),
        ("Tesla V100-SXM2-32GB", "V100-32G"),
        *(("NVIDIA H200\nNVIDIA L4", None), ("NVIDIA GH200 480GB", None), ("NVIDIA L40", None)),
        *(("NVIDIA GeForce RTX 5090", None), ("NVIDIA A100", None)),
    ],
)
def test_models_are_known_by_the_drivers_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: str, expected: str | None
) -> None:
    """A name that is only similar is none: times would be those of another GPU."""
    command = tmp_path / "nvidia-smi"
    command.write_text(f"#!/bin/sh\necho '{lines}'\n")
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert gpu_name() == expected


def test_without_the_command_there_is_no_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert gpu_memory_bytes() == () and gpu_name() is None


def test_the_smallest_of_the_gpus_taken_counts() -> None:
    taken = gpu_inventory((80, 40, 20), 2)
    assert (taken.device, taken.num_devices) == (Device.GPU, 2)
    assert taken.memory_bytes_per_device == 40
    assert gpu_inventory((80, 40, 20), None).num_devices == 3
    assert (taken.gpu, gpu_inventory((80,), 1, "H200").gpu) == (None, "H200")


def test_more_gpus_than_there_are_is_refused() -> None:
    with pytest.raises(DevicesUnknown, match="got --devices 2, allowed at most 1"):
        gpu_inventory((80,), 2)
