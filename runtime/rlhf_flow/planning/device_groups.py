"""Groups of neighbouring devices that hold the same: one sum of memory stands for each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from rlhf_api.calls import CallKind, Phase, call_phase
from rlhf_api.plan import Mesh, Pool
from rlhf_api.plan_memory import MemoryItem, sum_by_phase
from rlhf_flow.planning.placement import RolePlace, describe_devices


@dataclass(frozen=True)
class DeviceGroup:
    """Neighbouring devices of a pool that hold the same roles."""

    pool: Pool
    first_rank: int
    """As the pool numbers them."""
    num_devices: int
    roles: tuple[str, ...]
    """Roles whose models they hold, for training and forward passes."""
    generating: tuple[str, ...]
    """Roles that generate there, if they do."""

    @property
    def ranks(self) -> range:
        """As the pool numbers them."""
        return range(self.first_rank, self.first_rank + self.num_devices)

    def __str__(self) -> str:
        return describe_devices(self.ranks, self.pool.name)


@dataclass(frozen=True)
class GroupMemory:
    """A group of devices, and what memory is used for on each of them."""

    group: DeviceGroup
    phases: tuple[Phase, ...]
    """In which its memory differs."""
    items: tuple[MemoryItem, ...]

    @cached_property
    def sums(self) -> Mapping[Phase, int]:
        """What is held in each phase."""
        return sum_by_phase(self.items)

    @property
    def peak_bytes(self) -> int:
        """The highest sum of all phases."""
        return max(self.sums.values())

    @property
    def excess_bytes(self) -> int:
        """How much that is more than a device has; negative where it fits."""
        return self.peak_bytes - self.group.pool.memory_bytes_per_device

    def held_peak(self, role: str, release: bool) -> int:
        """Bytes in the fuller of the phases of generation that hold a role's cache: while its
        weights arrive only where it is not given back."""
        kinds = (CallKind.GENERATE,) if release else (CallKind.RESHARD, CallKind.GENERATE)
        return max(self.sums[call_phase(role, kind)] for kind in kinds)


def device_groups(
    pools: Sequence[Pool], places: Mapping[str, RolePlace]
) -> tuple[DeviceGroup, ...]:
    """All devices, in groups as large as they can be; a group may hold nothing."""
    return tuple(group for pool in pools for group in _groups_of(pool, places))


def _groups_of(pool: Pool, places: Mapping[str, RolePlace]) -> Iterator[DeviceGroup]:
    training, generation = (
        {role: mesh.ranks for role, mesh in meshes.items() if mesh.pool == pool.name}
        for meshes in _meshes(places)
    )
    cuts = {0, pool.num_devices}
    cuts |= {
        cut
        for ranks in (*training.values(), *generation.values())
        for cut in (ranks.start, ranks.stop)
    }
    bounds = sorted(cuts)
    for first, end in zip(bounds[:-1], bounds[1:], strict=True):
        held, generating = (
            tuple(role for role, ranks in each.items() if first in ranks)
            for each in (training, generation)
        )
        yield DeviceGroup(pool, first, end - first, held, generating)


def _meshes(places: Mapping[str, RolePlace]) -> tuple[dict[str, Mesh], dict[str, Mesh]]:
    """Of training and of generation."""
    return (
        {role: place.training.mesh for role, place in places.items()},
        {role: place.generation.mesh for role, place in places.items()},
    )
