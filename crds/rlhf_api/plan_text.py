"""Parts of a plan as text for people, one line each."""

from __future__ import annotations

from rlhf_api.mesh import Mesh
from rlhf_api.plan_memory import MemoryItem

MIB, GIB = 2**20, 2**30
MAX_SHOWN_GROUPS = 4


def describe_devices(ranks: range, pool: str) -> str:
    """Devices of a pool for people: `device 1 of pool a`, `devices 0 to 3 of pool a`."""
    first, last = ranks.start, ranks.stop - 1
    return f"device{'' if first == last else 's'} {first}" + (
        f" of pool {pool}" if first == last else f" to {last} of pool {pool}"
    )


def describe_groups(engines: Mesh) -> str:
    """The ranks of each engine for people: `{0,2}, {1,3}`."""
    groups = engines.tensor_groups
    shown = [f"{{{','.join(map(str, group))}}}" for group in groups[:MAX_SHOWN_GROUPS]]
    return ", ".join([*shown, *(["..."] if len(groups) > MAX_SHOWN_GROUPS else [])])


def describe_item(item: MemoryItem) -> str:
    """Name of an item, such as `actor Optimizer`."""
    return f"{item.role or 'process'} {item.what.value}"


def format_bytes(size: int) -> str:
    """A size in GiB, or in MiB where it is small."""
    return f"{size / GIB:,.2f} GiB" if size >= GIB else f"{size / MIB:,.1f} MiB"
