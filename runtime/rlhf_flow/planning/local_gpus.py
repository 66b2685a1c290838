"""The GPUs of this machine, as the NVIDIA driver's own command lists them."""

from __future__ import annotations

import shutil
import subprocess

from rlhf_api.plan import Pool
from rlhf_api.spec.resources import Device
from rlhf_flow.errors import DevicesUnknown
from rlhf_flow.planning.inventory import known_gpu

COMMAND = "nvidia-smi"
FORMAT = "--format=csv,noheader,nounits"
MIB = 2**20


def gpu_memory_bytes() -> tuple[int, ...]:
    """Memory of each GPU; empty on a machine without any, or without the driver's command."""
    return parse_memory(_asked("memory.total"))


def gpu_name() -> str | None:
    """The model of this machine's GPUs, as plans name it; None where they differ, or are not
    known."""
    names = {known_gpu(line) for line in _asked("name").splitlines() if line.strip()}
    return names.pop() if len(names) == 1 else None


def _asked(field: str) -> str:
    """The command's answer, a line for each GPU; empty where there is none."""
    if shutil.which(COMMAND) is None:
        return ""
    query = (COMMAND, f"--query-gpu={field}", FORMAT)
    answer = subprocess.run(query, capture_output=True, text=True, check=False)
    return answer.stdout if answer.returncode == 0 else ""


def parse_memory(text: str) -> tuple[int, ...]:
    """Bytes from the command's lines, a number of MiB each; other lines mean that there is none."""
    lines = [line.strip() for line in text.splitlines()]
    return tuple(int(line) * MIB for line in lines if line.isdigit())


def gpu_inventory(
    memory_bytes: tuple[int, ...], num_devices: int | None, gpu: str | None = None
) -> Pool:
    """The first GPUs of this machine, by default all.

    Args:
        memory_bytes: of each.
        num_devices: how many.
        gpu: their model, where it is known.

    Raises:
        DevicesUnknown: more are asked for than there are.
    """
    count = len(memory_bytes) if num_devices is None else num_devices
    if count > len(memory_bytes):
        raise DevicesUnknown(
            f"this machine has fewer GPUs than asked for: got --devices {count}, allowed at most "
            f"{len(memory_bytes)}; ask for fewer"
        )
    return Pool(
        name="local",
        device=Device.GPU,
        nodes=1,
        devices_per_node=count,
        memory_bytes_per_device=min(memory_bytes[:count]),
        gpu=gpu,
    )
