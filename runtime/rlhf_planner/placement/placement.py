"""The placement of roles: devices for each kind of their calls.

Neighbouring devices with the same roles form a group: one sum of memory holds for all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property

from rlhf_api.calls import CallKind, Phase, call_phase
from rlhf_api.mesh import Mesh
from rlhf_api.plan import Pool
from rlhf_api.plan_memory import MemoryItem, sum_by_phase
from rlhf_api.plan_text import describe_devices
from rlhf_api.spec.placement import PlacementSpec, PlacementType, RoleCalls, RoleGroup
from rlhf_flow.errors import InvalidPlacement, NotOffered

# Kinds of calls of each role with a model, in any graph.
KindsOfCalls = Mapping[str, AbstractSet[RoleCalls]]


@dataclass(frozen=True)
class CallPlacement:
    """The devices for some calls of a role, and the cut of the model that placement fixes there."""

    mesh: Mesh
    """The devices, cut along `data` only."""
    tensor: int | None = None
    """Tensor ranks. None: placement leaves them open."""
    pipeline: int | None = None
    """Pipeline stages. None: placement leaves them open."""
    group: int | None = None
    """Index in placement.groups. None: placement has no groups."""
    is_chosen: bool = False
    """True if the planner chose devices and cut, by time."""

    @property
    def field(self) -> str:
        """The field of the manifest that fixes it."""
        return "placement" if self.group is None else f"placement.groups[{self.group}]"

    @property
    def cut(self) -> dict[str, int]:
        """The cut that placement fixes, by the names of its fields."""
        named = {"tensor": self.tensor, "pipeline": self.pipeline}
        return {name: size for name, size in named.items() if size is not None}


@dataclass(frozen=True)
class RolePlacement:
    """The devices of a role."""

    training: CallPlacement
    """For training and forward passes: these devices hold its model."""
    generation: CallPlacement
    """For generation, if it generates."""


def meshes_placement(meshes: Mapping[str, Mesh]) -> Mapping[str, RolePlacement]:
    """Roles whose calls all run on the same devices."""
    by_role = {role: CallPlacement(mesh) for role, mesh in meshes.items()}
    return {
        role: RolePlacement(call_placement, call_placement)
        for role, call_placement in by_role.items()
    }


def manual_placement(
    placement: PlacementSpec, kinds: KindsOfCalls, pools: Sequence[Pool]
) -> Mapping[str, RolePlacement]:
    """The placement that the manifest asks for, of type Colocated or Manual.

    Args:
        placement: the manifest's.
        kinds: of the calls of each role with a model.
        pools: all devices.

    Raises:
        InvalidPlacement: groups that leave out a role or calls of it, name others, or exceed their
            pool.
        NotOffered: calls of a role on devices on which no runtime runs them.
    """
    if placement.type is not PlacementType.MANUAL:
        pool, *_ = pools
        return meshes_placement(dict.fromkeys(kinds, Mesh(pool=pool.name, data=pool.num_devices)))
    groups = placement.groups
    _check_roles(groups, tuple(kinds))
    call_placements = [
        _group_placement(group, number, pools) for number, group in enumerate(groups)
    ]
    placements = {
        role: _role_placement(role, groups, call_placements, kinds[role]) for role in kinds
    }
    # Devices without roles would idle throughout the job.
    for pool in pools:
        if all(pool.name != call_placement.mesh.pool for call_placement in call_placements):
            raise InvalidPlacement(
                f"a pool that holds no role: got {pool.name}, allowed pools that "
                "placement.groups[].pool names; name it there, or remove it"
            )
    return placements


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


def _group_placement(group: RoleGroup, number: int, pools: Sequence[Pool]) -> CallPlacement:
    pool = next((candidate for candidate in pools if group.pool in (None, candidate.name)), None)
    if pool is None:
        raise InvalidPlacement(
            f"the group of {group.name} is in a pool that is not there: got {group.pool}, allowed "
            f"{', '.join(pool_.name for pool_ in pools)}; correct placement.groups"
        )
    available = pool.num_devices - group.first_device
    devices = available if group.devices is None else group.devices
    if not 1 <= devices <= available:
        last = group.first_device + (group.devices or 1) - 1
        raise InvalidPlacement(
            f"the group of {group.name} does not lie in its pool: got devices "
            f"{group.first_device} to {last}, allowed 0 to {pool.num_devices - 1} of pool "
            f"{pool.name}; lower firstDevice or devices, or add devices"
        )
    mesh = Mesh(pool=pool.name, first_rank=group.first_device, data=devices)
    return CallPlacement(mesh, group.tensor, group.pipeline, number)


def _role_placement(
    role: str,
    groups: Sequence[RoleGroup],
    call_placements: Sequence[CallPlacement],
    kinds: AbstractSet[RoleCalls],
) -> RolePlacement:
    """The devices of a role by the groups that name it; at most one of these may name no kinds."""
    own_groups = [
        pair for pair in zip(groups, call_placements, strict=True) if role in pair[0].roles
    ]
    named = {kind: call_placement for group, call_placement in own_groups for kind in group.calls}
    rest = next((call_placement for group, call_placement in own_groups if not group.calls), None)
    _check_kinds(role, named, rest, kinds)
    by_kind = {kind: named.get(kind, rest) for kind in RoleCalls}
    trained, inferred = (
        by_kind[kind] if kind in kinds else None for kind in (RoleCalls.TRAIN, RoleCalls.INFER)
    )
    generating = by_kind[RoleCalls.GENERATE] if RoleCalls.GENERATE in kinds else None
    # A role without calls of a kind takes the devices of the next kind: its model needs some.
    training = trained or inferred or generating or rest or own_groups[0][1]
    # Infer reads the weights that Train updates, and no runtime moves them between such calls.
    if inferred is not None and not _is_same(inferred, training):
        raise NotOffered(
            f"a role that is trained and runs forward on different devices is not offered: got "
            f"Train of {role} on {_describe(training)} and Infer on {_describe(inferred)}, allowed "
            "the same devices and cut for both; write calls: [Train, Infer] in one group"
        )
    generation = generating or training
    # Pools are separate worlds of ranks: weights cannot be sent from one to the other.
    if generation.mesh.pool != training.mesh.pool:
        raise NotOffered(
            f"a role that generates in another pool is not offered: got {role} in pool "
            f"{training.mesh.pool}, and its generation in {generation.mesh.pool}, allowed one pool "
            "for both; change placement.groups[].pool"
        )
    return RolePlacement(training, generation)


def _check_kinds(
    role: str,
    named: Mapping[RoleCalls, CallPlacement],
    rest: CallPlacement | None,
    kinds: AbstractSet[RoleCalls],
) -> None:
    allowed = ", ".join(kind for kind in RoleCalls if kind in kinds)
    for kind, call_placement in named.items():
        if kind not in kinds:
            raise InvalidPlacement(
                f"{call_placement.field} is for calls that {role} does not have: got {kind}, "
                f"allowed {allowed}; remove them, or {role}, from this group"
            )
    unnamed = [kind for kind in RoleCalls if kind in kinds and kind not in named]
    if rest is None and unnamed:
        raise InvalidPlacement(
            f"placement.groups leave calls of {role} out: got no group for {', '.join(unnamed)}, "
            f"allowed groups for all of {allowed}; add them to one's calls, or a group of {role} "
            "without calls"
        )
    if rest is not None and kinds and not unnamed:
        raise InvalidPlacement(
            f"{rest.field} has no calls of {role}: got other groups for all of {allowed}, allowed "
            f"calls that no other group names; remove {role} from it"
        )


def _is_same(one: CallPlacement, other: CallPlacement) -> bool:
    return (one.mesh, one.cut) == (other.mesh, other.cut)


def _describe(call_placement: CallPlacement) -> str:
    cut = [f"{name} {size}" for name, size in call_placement.cut.items()]
    return " with ".join(
        [describe_devices(call_placement.mesh.ranks, call_placement.mesh.pool), *cut]
    )


@dataclass(frozen=True)
class DeviceGroup:
    """Neighbouring devices of a pool with the same roles."""

    pool: Pool
    first_rank: int
    """First rank, as the pool numbers them."""
    num_devices: int
    roles: tuple[str, ...]
    """Roles whose models they hold, for training and forward passes."""
    generating: tuple[str, ...]
    """Roles that generate there."""

    @property
    def ranks(self) -> range:
        """Ranks, as the pool numbers them."""
        return range(self.first_rank, self.first_rank + self.num_devices)

    def __str__(self) -> str:
        return describe_devices(self.ranks, self.pool.name)


@dataclass(frozen=True)
class GroupMemory:
    """A group of devices, and the use of memory on each of them."""

    group: DeviceGroup
    phases: tuple[Phase, ...]
    """Phases that differ in memory."""
    items: tuple[MemoryItem, ...]

    @cached_property
    def sums(self) -> Mapping[Phase, int]:
        """Bytes in each phase."""
        return sum_by_phase(self.items)

    @property
    def peak_bytes(self) -> int:
        """The highest sum of all phases."""
        return max(self.sums.values())

    @property
    def excess_bytes(self) -> int:
        """Bytes above the memory of a device; negative if it fits."""
        return self.peak_bytes - self.group.pool.memory_bytes_per_device

    def generation_peak(self, role: str, release: bool) -> int:
        """The highest sum of the phases in which a role's cache is resident."""
        # Engines that keep their memory also hold the cache while new weights arrive.
        kinds = (CallKind.GENERATE,) if release else (CallKind.RESHARD, CallKind.GENERATE)
        return max(self.sums[call_phase(role, kind)] for kind in kinds)


def device_groups(
    pools: Sequence[Pool], placement: Mapping[str, RolePlacement]
) -> tuple[DeviceGroup, ...]:
    """All devices, in the largest possible groups; a group may have no roles."""
    return tuple(group for pool in pools for group in _groups_of(pool, placement))


def _groups_of(pool: Pool, placement: Mapping[str, RolePlacement]) -> Iterator[DeviceGroup]:
    training, generation = (
        {role: mesh.ranks for role, mesh in meshes.items() if mesh.pool == pool.name}
        for meshes in _meshes(placement)
    )
    cuts = {0, pool.num_devices}
    cuts |= {
        cut
        for ranks in (*training.values(), *generation.values())
        for cut in (ranks.start, ranks.stop)
    }
    # Roles change only at the ends of their ranks, so these are the borders of the groups.
    bounds = sorted(cuts)
    for first, end in zip(bounds[:-1], bounds[1:], strict=True):
        resident, generating = (
            tuple(role for role, ranks in roles.items() if first in ranks)
            for roles in (training, generation)
        )
        yield DeviceGroup(pool, first, end - first, resident, generating)


def _meshes(placement: Mapping[str, RolePlacement]) -> tuple[dict[str, Mesh], dict[str, Mesh]]:
    """Meshes of training and of generation."""
    return (
        {role: role_placement.training.mesh for role, role_placement in placement.items()},
        {role: role_placement.generation.mesh for role, role_placement in placement.items()},
    )
