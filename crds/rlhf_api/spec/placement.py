"""Placement of roles on devices."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import Field

from rlhf_api.base import Contract, Count, Identifier, Name
from rlhf_api.cel_literals import texts
from rlhf_api.rules import Rule, Violation, violation_if
from rlhf_api.spec.objective import PlacementObjective

if TYPE_CHECKING:
    from rlhf_api.spec.job import RLHFJobSpec


class PlacementType(StrEnum):
    """Placement of roles on devices."""

    AUTO = "Auto"
    """The planner chooses."""
    COLOCATED = "Colocated"
    """Every role uses every device; calls take turns."""
    SPLIT = "Split"
    """Language models use some devices, critics and other scalar models the others; both sets run
    at the same time."""
    STANDALONE = "Standalone"
    """Every role with a model has its own devices."""
    MANUAL = "Manual"
    """`groups` assigns devices to roles or to some of their calls. Groups without a common device
    run at the same time."""


# Placements that determine the pool of each role if there are several pools.
MULTI_POOL_PLACEMENTS = (PlacementType.MANUAL, PlacementType.SPLIT, PlacementType.STANDALONE)

# Placements with which the planner chooses the pool of each role if there are several pools.
PLANNER_CHOOSES_POOLS = (PlacementType.AUTO, PlacementType.SPLIT, PlacementType.STANDALONE)

# Largest number of devices of a pool: the limits of nodes x devicesPerNode in NodePool.
MAX_DEVICES = 4096 * 64


class RoleCalls(StrEnum):
    """Kinds of a role's calls that may have their own devices."""

    TRAIN = "Train"
    """Training of its model."""
    INFER = "Infer"
    """Forward passes, such as log-probabilities and values. They use the devices that train it."""
    GENERATE = "Generate"
    """Generation of responses. Changed weights are sent to the devices that generate."""


def _calls_are_named_once(group: RoleGroup) -> Iterator[Violation]:
    for index, kind in enumerate(group.calls):
        if kind in group.calls[:index]:
            yield Violation(kind.value, ("calls", index))


def _generation_has_no_stages(group: RoleGroup) -> list[Violation]:
    generates = group.calls == (RoleCalls.GENERATE,)
    return violation_if(generates and group.pipeline is not None, group.pipeline)


class RoleGroup(Contract):
    """Roles, or some of their calls, and consecutive devices of a pool for them. Groups may share
    devices."""

    validations: ClassVar[tuple[Rule, ...]] = (
        Rule(
            holds="self.calls.all(kind, self.calls.filter(other, other == kind).size() == 1)",
            what="a kind of calls twice in a group",
            do="name it once",
            field=".calls",
            check=_calls_are_named_once,
        ),
        Rule(
            holds=f"self.calls != {texts([RoleCalls.GENERATE.value])} || !has(self.pipeline)",
            what="pipeline stages of generation, which has none",
            do="remove pipeline, and give the engines more tensor ranks",
            field=".pipeline",
            check=_generation_has_no_stages,
        ),
    )

    roles: Annotated[tuple[Identifier, ...], Field(min_length=1, max_length=16)]
    """Roles with a model, such as actor and reference."""
    calls: Annotated[tuple[RoleCalls, ...], Field(max_length=3)] = ()
    """Kinds of calls of these roles: Train, Infer, Generate. Default: all kinds that no other group
    names for the role."""
    pool: Name | None = None
    """Node pool. Default: the only one of the groups or of the job."""
    first_device: Annotated[int, Field(ge=0, le=MAX_DEVICES - 1)] = 0
    """First device, counted from 0 over the pool's nodes."""
    devices: Annotated[int, Field(ge=1, le=MAX_DEVICES)] | None = None
    """Number of devices. Default: the rest of the pool."""
    tensor: Annotated[int, Field(ge=1, le=1024)] | None = None
    """Devices that split each layer in these calls. Default: for Generate
    rollout.parallelism.tensor, otherwise training.parallelism.tensor of the role."""
    pipeline: Annotated[int, Field(ge=1, le=1024)] | None = None
    """Pipeline stages that split the layers in Train and Infer. Default:
    training.parallelism.pipeline of the role."""

    @property
    def name(self) -> str:
        """Name for people."""
        kinds = f" for {', '.join(self.calls)}" if self.calls else ""
        return f"{', '.join(self.roles)}{kinds}"


class PlacementSpec(Contract):
    """Placement of roles on devices."""

    type: PlacementType = PlacementType.AUTO
    """Auto, Colocated, Split, Standalone or Manual."""
    objective: PlacementObjective = PlacementObjective()
    """Quantity that the plan minimizes: time per step, device time per step, or the number of
    devices that are fast enough."""
    max_devices: Count | None = None
    """Largest number of devices of the pool to use; not for Manual. Default: all."""
    groups: Annotated[tuple[RoleGroup, ...], Field(max_length=16)] = ()
    """For Manual: groups of roles and devices. Every call of every role with a model is in exactly
    one group."""


def _is_manual(spec: RLHFJobSpec) -> bool:
    return spec.placement.type is PlacementType.MANUAL


def _manual_has_groups(spec: RLHFJobSpec) -> list[Violation]:
    return violation_if(_is_manual(spec) and not spec.placement.groups, "none")


def _groups_need_manual(spec: RLHFJobSpec) -> list[Violation]:
    kind = spec.placement.type
    return violation_if(not _is_manual(spec) and bool(spec.placement.groups), kind.value)


def _groups_name_their_devices(spec: RLHFJobSpec) -> list[Violation]:
    limit = spec.placement.max_devices
    return violation_if(_is_manual(spec) and limit is not None, limit)


def _roles_are_unique(spec: RLHFJobSpec) -> Iterator[Violation]:
    seen: set[tuple[str, RoleCalls | None]] = set()
    for number, group in enumerate(spec.placement.groups):
        for index, role in enumerate(group.roles):
            # None stands for all kinds that no other group names.
            calls = {(role, kind) for kind in dict.fromkeys(group.calls or (None,))}
            if calls & seen:
                yield Violation(role, ("placement", "groups", number, "roles", index))
            seen |= calls


def _pools_of_groups_exist(spec: RLHFJobSpec) -> Iterator[Violation]:
    names = [pool.name for pool in spec.resources.node_pools]
    for number, group in enumerate(spec.placement.groups):
        if names and group.pool is not None and group.pool not in names:
            near = get_close_matches(group.pool, names, n=1)
            do = f"did you mean {near[0]}?" if near else ""
            path = ("placement", "groups", number, "pool")
            yield Violation(group.pool, path, ", ".join(names), do)


def _groups_name_one_of_several_pools(spec: RLHFJobSpec) -> Iterator[Violation]:
    names = [pool.name for pool in spec.resources.node_pools]
    names = names or [group.pool for group in spec.placement.groups if group.pool is not None]
    for number, group in enumerate(spec.placement.groups):
        if group.pool is None and len(set(names)) > 1:
            path = ("placement", "groups", number, "pool")
            yield Violation("none", path, ", ".join(dict.fromkeys(names)))


def _groups_lie_in_their_pools(spec: RLHFJobSpec) -> Iterator[Violation]:
    pools = spec.resources.node_pools
    for number, group in enumerate(spec.placement.groups):
        named = [pool for pool in pools if pool.name == group.pool]
        # A group without a pool is in the only one; several pools without a name are another
        # rule's.
        for pool in named if group.pool is not None or len(pools) != 1 else pools:
            last = group.first_device + (group.devices or 1) - 1
            if last >= pool.num_devices:
                field = "firstDevice" if group.devices is None else "devices"
                yield Violation(
                    f"devices {group.first_device} to {last} for {group.name}",
                    ("placement", "groups", number, field),
                    f"0 to {pool.num_devices - 1} of pool {pool.name}, which has {pool.nodes} x "
                    f"{pool.devices_per_node}",
                )


def _pools_have_roles(spec: RLHFJobSpec) -> list[Violation]:
    pools, kind = spec.resources.node_pools, spec.placement.type
    is_decided = kind in MULTI_POOL_PLACEMENTS
    if kind is PlacementType.AUTO:
        is_decided = all(pool.gpu is not None or pool.hardware is not None for pool in pools)
    return violation_if(len(pools) > 1 and not is_decided, ", ".join(pool.name for pool in pools))


def _one_pool_is_limited(spec: RLHFJobSpec) -> list[Violation]:
    pools, limit = spec.resources.node_pools, spec.placement.max_devices
    is_chosen = spec.placement.type in PLANNER_CHOOSES_POOLS
    return violation_if(len(pools) > 1 and is_chosen and limit is not None, limit)


_GROUPS = "self.placement.groups"
_POOLS = "self.resources.nodePools"
_ONE_NAME = (
    f"{_GROUPS}.all(one, !has(one.pool) || {_GROUPS}.all(other, !has(other.pool) || "
    "other.pool == one.pool))"
)

# Rules of the spec instead of PlacementSpec.
# The API server checks the default {} of an object before it fills in the defaults of its fields.
PLACEMENT_RULES: tuple[Rule, ...] = (
    # Groups exist if and only if the type is Manual.
    Rule(
        holds=f"self.placement.type != 'Manual' || {_GROUPS}.size() > 0",
        what="placement Manual without a group",
        do="add one for every set of roles that share devices, or write type: Colocated",
        field=".placement.groups",
        check=_manual_has_groups,
    ),
    Rule(
        holds=f"self.placement.type == 'Manual' || {_GROUPS}.size() == 0",
        what="groups with another type of placement",
        got="self.placement.type",
        allowed="Manual",
        do="write type: Manual, or remove the groups",
        field=".placement.groups",
        check=_groups_need_manual,
    ),
    Rule(
        holds="self.placement.type != 'Manual' || !has(self.placement.maxDevices)",
        what="a limit on devices, with groups that name theirs",
        do="remove it, and give the groups fewer devices",
        field=".placement.maxDevices",
        check=_groups_name_their_devices,
    ),
    # For every role of every group: the number of groups with this role and a common kind of calls,
    # itself included, is one. A group without calls stands for all kinds that no other group names.
    Rule(
        holds=f"{_GROUPS}.all(group, group.roles.all(role, {_GROUPS}.map(other, "
        "(group.calls.size() == 0 ? other.calls.size() == 0 : "
        "group.calls.exists(kind, kind in other.calls)) ? "
        "other.roles.filter(name, name == role).size() : 0).sum() == 1))",
        what="a role twice among the groups, for the same calls",
        do="name it once, or give the groups different calls of it",
        field=".placement.groups",
        check=_roles_are_unique,
    ),
    # Pools of groups. Without node pools in the manifest their names cannot be checked.
    Rule(
        holds=f"{_POOLS}.size() == 0 || {_GROUPS}.all(group, !has(group.pool) || "
        f"{_POOLS}.exists(pool, pool.name == group.pool))",
        what="a group in a pool that the job does not have",
        allowed="a name of resources.nodePools",
        do="correct it, or add the pool",
        field=".placement.groups",
        check=_pools_of_groups_exist,
    ),
    Rule(
        holds=f"{_POOLS}.size() == 1 || ({_POOLS}.size() == 0 && {_ONE_NAME}) || "
        f"{_GROUPS}.all(group, has(group.pool))",
        what="a group without a pool, and the job has several",
        allowed="the name of a pool",
        do="name its pool",
        field=".placement.groups",
        check=_groups_name_one_of_several_pools,
    ),
    # Pools that are not the group's are skipped. A group without `devices` needs at least its
    # first.
    Rule(
        holds=f"{_GROUPS}.all(group, {_POOLS}.all(pool, (has(group.pool) ? "
        f"pool.name != group.pool : {_POOLS}.size() > 1) || group.firstDevice + "
        "(has(group.devices) ? group.devices : 1) <= pool.nodes * pool.devicesPerNode))",
        what="a group with more devices than its pool has",
        allowed="firstDevice + devices of at most nodes x devicesPerNode",
        do="lower firstDevice or devices, or add nodes",
        field=".placement.groups",
        check=_groups_lie_in_their_pools,
    ),
    # Auto compares times to assign roles to pools, so it must be able to estimate them.
    Rule(
        holds=f"{_POOLS}.size() <= 1 || "
        f"self.placement.type in {texts([kind.value for kind in MULTI_POOL_PLACEMENTS])} || "
        f"(self.placement.type == 'Auto' && {_POOLS}.all(pool, has(pool.gpu) || "
        "has(pool.hardware)))",
        what="several pools, and nothing assigns roles to them",
        do="name the GPUs of each pool (gpu, or hardware) and let type: Auto assign roles, write "
        "type: Manual with groups of roles, Split or Standalone, or leave one pool",
        field=".placement.type",
        check=_pools_have_roles,
    ),
    Rule(
        holds=f"{_POOLS}.size() <= 1 || !has(self.placement.maxDevices) || "
        f"!(self.placement.type in {texts([kind.value for kind in PLANNER_CHOOSES_POOLS])})",
        what="a limit on devices, with several pools",
        do="remove it, and give the pools fewer nodes",
        field=".placement.maxDevices",
        check=_one_pool_is_limited,
    ),
)
