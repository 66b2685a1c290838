"""More devices, or such with more memory. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import lcm
from typing import Any

from rlhf_api.plan import Pool
from rlhf_api.spec.job import RLHFJob
from rlhf_api.spec.resources import Device
from rlhf_flow.planning.changes import Change, Changed, Path, with_field
from rlhf_flow.planning.inventory import GPU_MEMORY_BYTES
from rlhf_flow.planning.memory import GIB

MOST_DEVICES = 1024
"""Up to which more of them are tried."""
MOST_GIB = 4096
"""Memory of a device up to which more is tried."""


def device_changes(asked: Changed) -> list[Change]:
    """More devices: for each pool, for several together, and those that placement.maxDevices leaves
    out."""
    job, devices = asked.job, asked.devices
    limit = job.spec.placement.max_devices
    if limit is not None:
        total = max(pool.num_devices for pool in devices)
        path: Path = ("spec", "placement", "max_devices")
        raised = Change(
            range(limit + 1, total + 1),
            partial(with_field, path=path),
            lambda count: f"raise placement.maxDevices to {count}",
        )
        return [raised]
    named = len(devices) > 1
    grown = [
        Change(
            _larger(pool, job),
            partial(_grow, number=number),
            partial(_devices_text, pool=pool.name if named else ""),
        )
        for number, pool in enumerate(devices)
    ]
    return [*grown, _all_pools(grown)] if named else grown


def _all_pools(grown: Sequence[Change]) -> Change:
    """All pools made larger, to the same number of devices."""
    sizes = [change.values for change in grown]
    common = sorted(set(sizes[0]).intersection(*sizes[1:]), key=lambda size: size[0] * size[1])

    def apply(changed: Changed, size: Any) -> Changed:
        for change in grown:
            changed = change.apply(changed, size)
        return changed

    return Change(common, apply, lambda size: "; and ".join(change.text(size) for change in grown))


def memory_change(asked: Changed) -> Change:
    """Devices with more memory; in GiB. Of GPUs those that are known here."""
    least = min(pool.memory_bytes_per_device for pool in asked.devices)
    on_cpus = asked.devices[0].device is Device.CPU
    most = MOST_GIB if on_cpus else max(GPU_MEMORY_BYTES.values()) // GIB

    def apply(changed: Changed, gib: int) -> Changed:
        pools = tuple(
            pool.model_copy(
                update={"memory_bytes_per_device": max(pool.memory_bytes_per_device, gib * GIB)}
            )
            for pool in changed.devices
        )
        return Changed(changed.job, pools)

    def text(gib: int) -> str:
        if on_cpus:
            return (
                f"give each process at least {gib} GiB: fewer processes on a machine, or a machine "
                "with more memory"
            )
        known = [name for name, size in GPU_MEMORY_BYTES.items() if size >= gib * GIB]
        return f"take devices with at least {gib} GiB ({', '.join(known)})"

    return Change(range(least // GIB + 1, most + 1), apply, text)


def _larger(pool: Pool, job: RLHFJob) -> list[tuple[int, int]]:
    """Nodes and devices of each, in larger and larger pools that hold whole copies of the models;
    a machine's CPUs are not more."""
    if pool.device is Device.CPU and not job.spec.resources.node_pools:
        return []
    nodes, per_node = pool.nodes, pool.devices_per_node
    sizes = []
    if nodes == 1:
        sizes = [(1, more) for more in (2, 4, 8) if more > per_node]
        per_node = max(per_node, 8)
    sizes += [(more, per_node) for more in range(nodes + 1, MOST_DEVICES // per_node + 1)]
    multiple = lcm(*(each.training.parallelism.num_ranks for each in job.spec.models.values()))
    return [(n, each) for n, each in sizes if n * each % multiple == 0]


def _grow(changed: Changed, size: tuple[int, int], number: int) -> Changed:
    nodes, per_node = size
    devices = list(changed.devices)
    grown = {"nodes": nodes, "devices_per_node": per_node}
    devices[number] = devices[number].model_copy(update=grown)
    return Changed(changed.job, tuple(devices))


def _devices_text(size: tuple[int, int], pool: str) -> str:
    nodes, per_node = size
    where = f"{nodes} nodes of {per_node}" if nodes > 1 else "on one node"
    return f"take {nodes * per_node} devices{pool and f' in pool {pool}'} ({where})"
