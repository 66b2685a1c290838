"""The placement of roles: devices for each kind of their calls.

Neighbouring devices with the same roles form a group: one sum of memory holds for all of them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cached_property

from rlhf_api.calls import CallKind, Phase, call_phase
from rlhf_api.mesh import Mesh
from rlhf_api.plan import Pool
from rlhf_api.plan_memory import MemoryItem, sum_by_phase
from rlhf_api.plan_text import describe_devices
from rlhf_api.spec.placement import PlacementSpec, PlacementType, RoleCalls, RoleGroup
from rlhf_flow.errors import InvalidPlacement, NotOffered
from rlhf_planner.placement.strategy import EngineStrategy, JobStrategy, RoleStrategy

# Kinds of calls of each role with a model, in any graph.
KindsOfCalls = Mapping[str, AbstractSet[RoleCalls]]


def same_devices(devices: Mapping[str, Mesh], generating: Collection[str]) -> JobStrategy:
    """The placement of roles whose calls all run on the same devices.

    Args:
        devices: of each role with a model.
        generating: the roles that generate.
    """
    return JobStrategy(
        {role: RoleStrategy(mesh) for role, mesh in devices.items()},
        {role: EngineStrategy(mesh) for role, mesh in devices.items() if role in generating},
    )


def manual_placement(
    placement: PlacementSpec, kinds: KindsOfCalls, pools: Sequence[Pool]
) -> JobStrategy:
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
        everywhere = Mesh(pool=pool.name, data=pool.num_devices)
        generating = [role for role in kinds if RoleCalls.GENERATE in kinds[role]]
        return same_devices(dict.fromkeys(kinds, everywhere), generating)
    groups = placement.groups
    _check_roles(groups, tuple(kinds))
    of_groups = [_group_strategy(group, number, pools) for number, group in enumerate(groups)]
    roles, engines = dict[str, RoleStrategy](), dict[str, EngineStrategy]()
    for role in kinds:
        roles[role], generation = _role_strategies(role, groups, of_groups, kinds[role])
        if generation is not None:
            engines[role] = EngineStrategy(
                generation.devices, generation.tensor, group=generation.group
            )
    # Devices without roles would idle throughout the job.
    for pool in pools:
        if all(pool.name != strategy.devices.pool for strategy in of_groups):
            raise InvalidPlacement(
                f"a pool that holds no role: got {pool.name}, allowed pools that "
                "placement.groups[].pool names; name it there, or remove it"
            )
    return JobStrategy(roles, engines)


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


def _group_strategy(group: RoleGroup, number: int, pools: Sequence[Pool]) -> RoleStrategy:
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
    return RoleStrategy(mesh, group.tensor, group.pipeline, group=number)


def _role_strategies(
    role: str,
    groups: Sequence[RoleGroup],
    of_groups: Sequence[RoleStrategy],
    kinds: AbstractSet[RoleCalls],
) -> tuple[RoleStrategy, RoleStrategy | None]:
    """The devices of a role, and those that generate with it, by the groups that name it; at most
    one of these may name no kinds."""
    own_groups = [pair for pair in zip(groups, of_groups, strict=True) if role in pair[0].roles]
    named = {kind: strategy for group, strategy in own_groups for kind in group.calls}
    rest = next((strategy for group, strategy in own_groups if not group.calls), None)
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
    # Pools are separate worlds of ranks: weights cannot be sent from one to the other.
    if generating is not None and generating.devices.pool != training.devices.pool:
        raise NotOffered(
            f"a role that generates in another pool is not offered: got {role} in pool "
            f"{training.devices.pool}, and its generation in {generating.devices.pool}, allowed "
            "one pool for both; change placement.groups[].pool"
        )
    return training, generating


def _check_kinds(
    role: str,
    named: Mapping[RoleCalls, RoleStrategy],
    rest: RoleStrategy | None,
    kinds: AbstractSet[RoleCalls],
) -> None:
    allowed = ", ".join(kind for kind in RoleCalls if kind in kinds)
    for kind, strategy in named.items():
        if kind not in kinds:
            raise InvalidPlacement(
                f"placement.groups[{strategy.group}] is for calls that {role} does not have: got "
                f"{kind}, allowed {allowed}; remove them, or {role}, from this group"
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
            f"placement.groups[{rest.group}] has no calls of {role}: got other groups for all of "
            f"{allowed}, allowed calls that no other group names; remove {role} from it"
        )


def _is_same(one: RoleStrategy, other: RoleStrategy) -> bool:
    return replace(one, group=None) == replace(other, group=None)


def _describe(strategy: RoleStrategy) -> str:
    sizes = {"tensor": strategy.tensor, "pipeline": strategy.pipeline}
    cut = [f"{name} {size}" for name, size in sizes.items() if size is not None]
    return " with ".join([describe_devices(strategy.devices.ranks, strategy.devices.pool), *cut])


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


def device_groups(pools: Sequence[Pool], placement: JobStrategy) -> tuple[DeviceGroup, ...]:
    """All devices, in the largest possible groups; a group may have no roles."""
    return tuple(group for pool in pools for group in _groups_of(pool, placement))


def _groups_of(pool: Pool, placement: JobStrategy) -> Iterator[DeviceGroup]:
    training, generation = (
        {
            role: strategy.devices.ranks
            for role, strategy in strategies.items()
            if strategy.devices.pool == pool.name
        }
        for strategies in (placement.roles, placement.engines)
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
