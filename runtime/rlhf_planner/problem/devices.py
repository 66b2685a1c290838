"""The devices that a plan may use: from a manifest's node pools, or of this machine."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence

from rlhf_api.plan import Pool
from rlhf_api.quantity import quantity_value
from rlhf_api.reading.suggestions import nearest
from rlhf_api.spec.hardware import HardwareSpec
from rlhf_api.spec.placement import PlacementSpec, PlacementType, RoleGroup
from rlhf_api.spec.resources import Device, NodePool
from rlhf_flow.errors import DevicesUnknown

GIB = 2**30

# Memory by the GPU's model, in decimal gigabytes as in data sheets. Drivers report a few percent
# more, which plans do not use.
GPU_MEMORY_BYTES: Mapping[str, int] = {
    name: gigabytes * 10**9
    for name, gigabytes in {
        "T4": 16,
        "V100-16G": 16,
        "V100-32G": 32,
        "A10": 24,
        "A10G": 24,
        "L4": 24,
        "RTX-4090": 24,
        "A100-40G": 40,
        "A40": 48,
        "L40S": 48,
        "RTX-A6000": 48,
        "A100-80G": 80,
        "H100": 80,
        "H100-80G": 80,
        "H200": 141,
        "B200": 180,
    }.items()
}

# Prefixes of GPU names.
_VENDORS = re.compile(r"^(NVIDIA-)?(GEFORCE-|TESLA-)?")
# The part of a name that is its memory.
_MEMORY = re.compile(r"\d+G")

# Memory of the machine for Ray's own processes and the driver: 0.85 GiB were measured.
HOST_RESERVE_BYTES = GIB


def inventory_from_pools(pools: tuple[NodePool, ...]) -> tuple[Pool, ...]:
    """The devices of a manifest's node pools.

    Raises:
        DevicesUnknown: no pool, one with an unknown memory per device, or one of an unknown GPU
            that the manifest does not describe enough.
    """
    if not pools:
        raise DevicesUnknown(
            "no devices to plan for: got no resources.nodePools; add a pool, or plan for this "
            "machine with --devices"
        )
    return tuple(_pool(pool, index) for index, pool in enumerate(pools))


def _pool(pool: NodePool, index: int) -> Pool:
    # A GPU outside the table may be used if the manifest describes its speed.
    if pool.device is Device.GPU and pool.gpu not in GPU_MEMORY_BYTES and pool.hardware is not None:
        try:
            check_described(pool.name, pool.gpu, pool.hardware)
        except DevicesUnknown as error:
            raise error.at("spec", "resources", "nodePools", index, "hardware") from None
    return Pool(
        name=pool.name,
        device=pool.device,
        nodes=pool.nodes,
        devices_per_node=pool.devices_per_node,
        memory_bytes_per_device=_memory_of(pool, index),
        gpu=pool.gpu,
        hardware=pool.hardware,
    )


def check_described(name: str, gpu: str | None, hardware: HardwareSpec | None) -> None:
    """Refuse an unknown GPU whose description is too short to tell its speed.

    Args:
        name: of its pool.
        gpu: its model, as the manifest names it.
        hardware: the manifest's description.

    Raises:
        DevicesUnknown: with what is missing.
    """
    needed = {
        "bfloat16Teraflops": hardware and hardware.bfloat16_teraflops,
        "memoryGigabytesPerSecond": hardware and hardware.memory_gigabytes_per_second,
    }
    if missing := [field for field, value in needed.items() if value is None]:
        near = " or ".join(similar_gpus(gpu or ""))
        advice = f"; or did you mean gpu: {near}?" if near else ""
        raise DevicesUnknown(
            f"hardware of pool {name} is not all that has to be known of a GPU without a preset: "
            f"got gpu {gpu or 'none'} without {' and '.join(missing)}, allowed hardware with "
            f"{' and '.join(needed)}; add {' and '.join(missing)}{advice}"
        )


def device_of(pools: Sequence[Pool]) -> Device:
    """Device of a job's ranks: the same in all of its pools."""
    pool, *_ = pools
    return pool.device


def limit_devices(devices: Pool, placement: PlacementSpec) -> Pool:
    """The devices that placement.maxDevices leaves: some of one node, or full nodes."""
    limit = placement.max_devices
    if limit is None or limit >= devices.num_devices:
        return devices
    # Devices that do not fill a node stay unused.
    per_node = min(limit, devices.devices_per_node)
    limited = {"nodes": limit // per_node, "devices_per_node": per_node}
    return devices.model_copy(update=limited)


def local_inventory(num_devices: int, machine_bytes: int) -> Pool:
    """Ranks on the CPUs of one machine.

    Args:
        num_devices: ranks.
        machine_bytes: memory of the machine, as `machine_memory_bytes` reads it.
    """
    bytes_per_rank = max(machine_bytes - HOST_RESERVE_BYTES, 0) // num_devices
    return Pool(
        name="local",
        device=Device.CPU,
        nodes=1,
        devices_per_node=num_devices,
        memory_bytes_per_device=bytes_per_rank,
    )


def min_devices_of_groups(placement: PlacementSpec) -> int:
    """Minimum of devices for the pools of a placement's groups; 1 without groups."""
    return sum(_needed(groups) for groups in _by_pool(placement).values())


def split_machine(machine: Pool, placement: PlacementSpec) -> tuple[Pool, ...]:
    """Split a machine's devices into the pools that a placement names.

    Raises:
        DevicesUnknown: too few devices.
    """
    pools = _by_pool(placement)
    # Spare devices go to pools with a group of open size: evenly, or one more for the first.
    spare = machine.num_devices - min_devices_of_groups(placement)
    if spare < 0:
        raise DevicesUnknown(
            f"the groups of roles need more devices than there are: got {machine.num_devices}, "
            f"allowed at least {min_devices_of_groups(placement)}; ask for more with --devices, or "
            "lower devices or firstDevice of placement.groups"
        )
    growing = [
        name
        for name, groups in pools.items()
        if not groups or any(group.devices is None for group in groups)
    ]
    share, rest = divmod(spare, len(growing)) if growing else (0, 0)
    more = {name: share + (number < rest) for number, name in enumerate(growing)}
    return tuple(
        machine.model_copy(
            update={
                "name": name or machine.name,
                "devices_per_node": _needed(groups) + more.get(name, 0),
            }
        )
        for name, groups in pools.items()
    )


def _by_pool(placement: PlacementSpec) -> dict[str | None, list[RoleGroup]]:
    """The groups of each pool that they name; one pool, without groups, for other placements."""
    if placement.type is not PlacementType.MANUAL:
        return {None: []}
    named = list(dict.fromkeys(group.pool for group in placement.groups if group.pool is not None))
    # Groups without a pool are in the first one that a group names.
    only = named[0] if named else None
    pools: dict[str | None, list[RoleGroup]] = {}
    for group in placement.groups:
        pools.setdefault(group.pool or only, []).append(group)
    return pools


def _needed(groups: Iterable[RoleGroup]) -> int:
    # A group of open size needs at least one device.
    return max((group.first_device + (group.devices or 1) for group in groups), default=1)


def _memory_of(pool: NodePool, index: int) -> int:
    if pool.memory_per_device is not None:
        return quantity_value(pool.memory_per_device)
    where = f"resources.nodePools {pool.name}"
    if pool.device is Device.CPU:
        if pool.resources.memory is None:
            raise DevicesUnknown(
                f"the memory of a CPU device is unknown: got {where} without it; set "
                "memoryPerDevice, or resources.memory of its pods"
            ).at("spec", "resources", "nodePools", index)
        return quantity_value(pool.resources.memory) // pool.devices_per_node
    if pool.gpu is None or pool.gpu not in GPU_MEMORY_BYTES:
        near = " or ".join(similar_gpus(pool.gpu or ""))
        advice = f"did you mean {near}? Else" if near else "name one of these or"
        raise DevicesUnknown(
            f"the memory of a device is unknown: got gpu {pool.gpu or 'none'} in {where}, allowed "
            f"{', '.join(GPU_MEMORY_BYTES)}; {advice} set memoryPerDevice, and hardware for "
            "plans that are chosen by time"
        ).at("spec", "resources", "nodePools", index, "gpu")
    return GPU_MEMORY_BYTES[pool.gpu]


def similar_gpus(name: str) -> list[str]:
    """The supported GPUs that a name can mean: as a driver or a cloud writes it
    (NVIDIA-H100-80GB-HBM3, nvidia-tesla-t4), without its memory (A100), or misspelt."""
    plain = _plain(name)
    # The most exact entry: H100-80G and H100 both begin the name H100-80G-HBM3.
    longest = max((gpu for gpu in GPU_MEMORY_BYTES if _begins(plain, gpu)), key=len, default="")
    variants = [gpu for gpu in GPU_MEMORY_BYTES if _begins(gpu, plain)]
    if longest or variants:
        return [longest] if longest else variants
    near = nearest(plain, list(GPU_MEMORY_BYTES))
    return [near] if near else []


def supported_gpu(name: str) -> str | None:
    """The supported GPU that a driver's name means (NVIDIA A100-SXM4-80GB); None unless all parts
    of its name, except the memory, occur."""
    parts = _plain(name).split("-")
    matches = [
        gpu
        for gpu in similar_gpus(name)
        if all(part in parts or _MEMORY.fullmatch(part) for part in gpu.split("-"))
    ]
    return matches[0] if len(matches) == 1 else None


def _plain(name: str) -> str:
    """A GPU's name in the form of this table, without its vendor."""
    # "NVIDIA H100 80GB HBM3" becomes "H100-80G-HBM3".
    plain = _VENDORS.sub("", name.strip().upper().replace(" ", "-").replace("_", "-"))
    return re.sub(r"(\d+)GB\b", r"\1G", plain)


def _begins(text: str, word: str) -> bool:
    """True if a name is a word, or begins with it and continues after a dash."""
    return bool(word) and f"{text}-".startswith(f"{word}-")


COMMAND = "nvidia-smi"
FORMAT = "--format=csv,noheader,nounits"
MIB = 2**20


def gpu_memory_bytes() -> tuple[int, ...]:
    """Memory of each GPU; empty on a machine without any, or without the driver's command."""
    return parse_memory(_query("memory.total"))


def gpu_name() -> str | None:
    """The model of this machine's GPUs, as plans name it; None if they differ or are unknown."""
    names = {supported_gpu(line) for line in _query("name").splitlines() if line.strip()}
    return names.pop() if len(names) == 1 else None


def _query(field: str) -> str:
    """Output of the driver's command, a line per GPU; empty if there is none."""
    if shutil.which(COMMAND) is None:
        return ""
    query = (COMMAND, f"--query-gpu={field}", FORMAT)
    answer = subprocess.run(query, capture_output=True, text=True, check=False)
    return answer.stdout if answer.returncode == 0 else ""


def parse_memory(text: str) -> tuple[int, ...]:
    """Bytes from the command's lines, a number of MiB each; empty for other output."""
    lines = [line.strip() for line in text.splitlines()]
    return tuple(int(line) * MIB for line in lines if line.isdigit())


def gpu_inventory(
    memory_bytes: tuple[int, ...], num_devices: int | None, gpu: str | None = None
) -> Pool:
    """The first GPUs of this machine, by default all.

    Args:
        memory_bytes: of each.
        num_devices: how many.
        gpu: their model, if it is supported.

    Raises:
        DevicesUnknown: fewer GPUs than requested.
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
        # A pool has one memory size, so the smallest GPU limits all.
        memory_bytes_per_device=min(memory_bytes[:count]),
        gpu=gpu,
    )
