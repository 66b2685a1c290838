"""Where roles are: the devices for each kind of their calls.

Groups of neighbouring devices that hold the same: one sum of memory stands for each.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property

from rlhf_api.calls import CallKind, Phase, call_phase
from rlhf_api.plan import Mesh, Pool
from rlhf_api.plan_memory import MemoryItem, sum_by_phase
from rlhf_api.plan_text import describe_devices
from rlhf_api.spec.placement import PlacementSpec, PlacementType, RoleCalls, RoleGroup
from rlhf_flow.errors import InvalidPlacement, NotOffered

KindsOfCalls = Mapping[str, AbstractSet[RoleCalls]]
"""Which kinds of calls each role with a model has, in any graph."""


@dataclass(frozen=True)
class CallPlace:
    """The devices for some calls of a role, and how the manifest cuts the model there."""

    mesh: Mesh
    """The devices, cut along `data` only."""
    tensor: int | None = None
    """None: placement does not say."""
    pipeline: int | None = None
    """None: placement does not say."""
    group: int | None = None
    """Which of placement.groups says so. None: none, they are all devices of roles."""
    is_chosen: bool = False
    """Whether the planner chose the devices and the cut, as the fastest."""

    @property
    def field(self) -> str:
        """What says so in the manifest."""
        return "placement" if self.group is None else f"placement.groups[{self.group}]"

    @property
    def cut(self) -> dict[str, int]:
        """What placement says of how the model is cut, by name."""
        given = {"tensor": self.tensor, "pipeline": self.pipeline}
        return {name: size for name, size in given.items() if size is not None}


@dataclass(frozen=True)
class RolePlace:
    """Where a role is."""

    training: CallPlace
    """For training and forward passes: these devices hold its model."""
    generation: CallPlace
    """For generation, if it has any."""


def place_everywhere(meshes: Mapping[str, Mesh]) -> Mapping[str, RolePlace]:
    """Roles all of whose calls are on the same devices."""
    places = {role: CallPlace(mesh) for role, mesh in meshes.items()}
    return {role: RolePlace(place, place) for role, place in places.items()}


def place_roles(
    placement: PlacementSpec, kinds: KindsOfCalls, pools: Sequence[Pool]
) -> Mapping[str, RolePlace]:
    """Where each role is.

    Args:
        placement: what is asked for.
        kinds: of the calls of each role with a model.
        pools: all devices.

    Raises:
        InvalidPlacement: groups that leave a role or calls of it out, name others, or do not lie
            in their pool.
        NotOffered: calls of a role on devices on which no runtime runs them.
    """
    if placement.type is not PlacementType.MANUAL:
        pool, *_ = pools
        return place_everywhere(dict.fromkeys(kinds, Mesh(pool=pool.name, data=pool.num_devices)))
    groups = placement.groups
    _check_roles(groups, tuple(kinds))
    places = [_place(group, number, pools) for number, group in enumerate(groups)]
    found = {role: _placed(role, groups, places, kinds[role]) for role in kinds}
    for pool in pools:
        if all(pool.name != place.mesh.pool for place in places):
            raise InvalidPlacement(
                f"a pool that holds no role: got {pool.name}, allowed pools that "
                "placement.groups[].pool names; name it there, or remove it"
            )
    return found


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


def _place(group: RoleGroup, number: int, pools: Sequence[Pool]) -> CallPlace:
    pool = next((each for each in pools if group.pool in (None, each.name)), None)
    if pool is None:
        raise InvalidPlacement(
            f"the group of {group.name} is in a pool that is not there: got {group.pool}, allowed "
            f"{', '.join(each.name for each in pools)}; correct placement.groups"
        )
    left = pool.num_devices - group.first_device
    devices = left if group.devices is None else group.devices
    if not 1 <= devices <= left:
        last = group.first_device + (group.devices or 1) - 1
        raise InvalidPlacement(
            f"the group of {group.name} does not lie in its pool: got devices "
            f"{group.first_device} to {last}, allowed 0 to {pool.num_devices - 1} of pool "
            f"{pool.name}; lower firstDevice or devices, or add devices"
        )
    mesh = Mesh(pool=pool.name, first_rank=group.first_device, data=devices)
    return CallPlace(mesh, group.tensor, group.pipeline, number)


def _placed(
    role: str,
    groups: Sequence[RoleGroup],
    places: Sequence[CallPlace],
    kinds: AbstractSet[RoleCalls],
) -> RolePlace:
    """Where a role is, by the groups that name it: which name each kind once, or none."""
    of_role = [pair for pair in zip(groups, places, strict=True) if role in pair[0].roles]
    named = {kind: place for group, place in of_role for kind in group.calls}
    rest = next((place for group, place in of_role if not group.calls), None)
    _check_kinds(role, named, rest, kinds)
    found = {kind: named.get(kind, rest) for kind in RoleCalls}
    trained, inferred = (
        found[kind] if kind in kinds else None for kind in (RoleCalls.TRAIN, RoleCalls.INFER)
    )
    generating = found[RoleCalls.GENERATE] if RoleCalls.GENERATE in kinds else None
    training = trained or inferred or generating or rest or of_role[0][1]
    if inferred is not None and not _is_same(inferred, training):
        raise NotOffered(
            f"a role that is trained and runs forward on different devices is not offered: got "
            f"Train of {role} on {_describe(training)} and Infer on {_describe(inferred)}, allowed "
            "the same devices and cut for both; write calls: [Train, Infer] in one group"
        )
    generation = generating or training
    if generation.mesh.pool != training.mesh.pool:
        raise NotOffered(
            f"a role that generates in another pool is not offered: got {role} in pool "
            f"{training.mesh.pool}, and its generation in {generation.mesh.pool}, allowed one pool "
            "for both; change placement.groups[].pool"
        )
    return RolePlace(training, generation)


def _check_kinds(
    role: str,
    named: Mapping[RoleCalls, CallPlace],
    rest: CallPlace | None,
    kinds: AbstractSet[RoleCalls],
) -> None:
    allowed = ", ".join(kind for kind in RoleCalls if kind in kinds)
    for kind, place in named.items():
        if kind not in kinds:
            raise InvalidPlacement(
                f"{place.field} is for calls that {role} does not have: got {kind}, allowed "
                f"{allowed}; remove them, or {role}, from this group"
            )
    left = [kind for kind in RoleCalls if kind in kinds and kind not in named]
    if rest is None and left:
        raise InvalidPlacement(
            f"placement.groups leave calls of {role} out: got no group for {', '.join(left)}, "
            f"allowed groups for all of {allowed}; add them to one's calls, or a group of {role} "
            "without calls"
        )
    if rest is not None and kinds and not left:
        raise InvalidPlacement(
            f"{rest.field} has no calls of {role}: got other groups for all of {allowed}, allowed "
            f"calls that no other group names; remove {role} from it"
        )


def _is_same(one: CallPlace, other: CallPlace) -> bool:
    return (one.mesh, one.cut) == (other.mesh, other.cut)


def _describe(place: CallPlace) -> str:
    cut = [f"{name} {size}" for name, size in place.cut.items()]
    return " with ".join([describe_devices(place.mesh.ranks, place.mesh.pool), *cut])


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
