"""Where roles are: the ranks that hold each model, and groups of devices that hold the same."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from rlhf_api import RLHFJob
from rlhf_api.plan import Mesh
from rlhf_api.spec.placement import PlacementType, RoleGroup
from rlhf_flow.errors import InvalidPlacement
from rlhf_flow.planning.inventory import DeviceInventory


@dataclass(frozen=True)
class DeviceGroup:
    """Neighbouring devices of a pool that hold the same roles."""

    pool: DeviceInventory
    first_rank: int
    """As the pool numbers them."""
    num_devices: int
    roles: tuple[str, ...]
    """Roles whose models they hold."""

    @property
    def ranks(self) -> range:
        """As the pool numbers them."""
        return range(self.first_rank, self.first_rank + self.num_devices)

    def __str__(self) -> str:
        return describe_devices(self.ranks, self.pool.pool)


def place_roles(
    job: RLHFJob, roles: Sequence[str], pools: Sequence[DeviceInventory]
) -> Mapping[str, Mesh]:
    """The ranks that hold each role's model, cut along `data` only.

    Args:
        job: the manifest.
        roles: those with a model.
        pools: all devices.

    Raises:
        InvalidPlacement: groups that leave a role out, name another, or do not lie in their pool.
    """
    if job.spec.placement.type is not PlacementType.MANUAL:
        pool, *_ = pools
        return dict.fromkeys(roles, Mesh(pool=pool.pool, data=pool.num_devices))
    groups = job.spec.placement.groups
    _check_roles(groups, roles)
    meshes = {role: _mesh(group, pools) for group in groups for role in group.roles}
    for pool in pools:
        if all(mesh.pool != pool.pool for mesh in meshes.values()):
            raise InvalidPlacement(
                f"a pool that holds no role: got {pool.pool}, allowed pools that "
                "placement.groups[].pool names; name it there, or remove it"
            )
    return {role: meshes[role] for role in roles}


def device_groups(
    pools: Sequence[DeviceInventory], meshes: Mapping[str, Mesh]
) -> tuple[DeviceGroup, ...]:
    """All devices, in groups as large as they can be; a group may hold nothing."""
    return tuple(group for pool in pools for group in _groups_of(pool, meshes))


def describe_devices(ranks: range, pool: str) -> str:
    """Devices of a pool for people: `device 1 of pool a`, `devices 0 to 3 of pool a`."""
    first, last = ranks.start, ranks.stop - 1
    return f"device{'' if first == last else 's'} {first}" + (
        f" of pool {pool}" if first == last else f" to {last} of pool {pool}"
    )


def _groups_of(pool: DeviceInventory, meshes: Mapping[str, Mesh]) -> Iterator[DeviceGroup]:
    here = {role: mesh.ranks for role, mesh in meshes.items() if mesh.pool == pool.pool}
    cuts = {0, pool.num_devices}
    cuts |= {cut for ranks in here.values() for cut in (ranks.start, ranks.stop)}
    bounds = sorted(cuts)
    for first, end in zip(bounds[:-1], bounds[1:], strict=True):
        held = tuple(role for role, ranks in here.items() if first in ranks)
        yield DeviceGroup(pool, first, end - first, held)


def _check_roles(groups: Sequence[RoleGroup], roles: Sequence[str]) -> None:
    placed = {role for group in groups for role in group.roles}
    if unknown := sorted(placed - set(roles)):
        near = get_close_matches(unknown[0], roles, n=1)
        raise InvalidPlacement(
            f"placement.groups name what is no role with a model: got {unknown[0]}, allowed "
            f"{', '.join(roles)}; "
            + (f"did you mean {near[0]}?" if near else "correct or remove it")
        )
    if missing := [role for role in roles if role not in placed]:
        raise InvalidPlacement(
            f"placement.groups leave a role out: got no group with {missing[0]}, allowed groups "
            f"with all of {', '.join(roles)}; add it to one"
        )


def _mesh(group: RoleGroup, pools: Sequence[DeviceInventory]) -> Mesh:
    pool = next((each for each in pools if group.pool in (None, each.pool)), None)
    roles = ", ".join(group.roles)
    if pool is None:
        raise InvalidPlacement(
            f"the group of {roles} is in a pool that is not there: got {group.pool}, allowed "
            f"{', '.join(each.pool for each in pools)}; correct placement.groups"
        )
    left = pool.num_devices - group.first_device
    devices = left if group.devices is None else group.devices
    if not 1 <= devices <= left:
        last = group.first_device + (group.devices or 1) - 1
        raise InvalidPlacement(
            f"the group of {roles} does not lie in its pool: got devices {group.first_device} to "
            f"{last}, allowed 0 to {pool.num_devices - 1} of pool {pool.pool}; lower firstDevice "
            "or devices, or add devices"
        )
    return Mesh(pool=pool.pool, first_rank=group.first_device, data=devices)
