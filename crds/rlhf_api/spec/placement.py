"""Which devices hold which roles."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import Field

from rlhf_api.base import Contract, Count, Identifier, Name
from rlhf_api.cel import texts
from rlhf_api.rules import Rule, Violation, violation_if
from rlhf_api.spec.objective import PlacementObjective

if TYPE_CHECKING:
    from rlhf_api.spec.job import RLHFJobSpec


class PlacementType(StrEnum):
    """How roles share devices."""

    AUTO = "Auto"
    """The planner decides."""
    COLOCATED = "Colocated"
    """Every role is on every device; calls take turns."""
    SPLIT = "Split"
    """Language models are on some devices, critics and other scalar models on others; both work at
    once."""
    STANDALONE = "Standalone"
    """Every role with a model has devices of its own."""
    MANUAL = "Manual"
    """Roles, or calls of theirs, are where `groups` says; those without a common device overlap."""


MULTI_POOL_PLACEMENTS = (PlacementType.MANUAL, PlacementType.SPLIT, PlacementType.STANDALONE)
"""Placements that say which role is in which of several pools."""

PLANNER_CHOOSES_POOLS = (PlacementType.AUTO, PlacementType.SPLIT, PlacementType.STANDALONE)
"""Placements by which the planner shares several pools out among roles."""

MAX_DEVICES = 4096 * 64
"""Of a pool: nodes x devices of a node, both at most what a NodePool may have."""


class RoleCalls(StrEnum):
    """Calls of a role that may have devices of their own."""

    TRAIN = "Train"
    """Updates of its model."""
    INFER = "Infer"
    """Forward passes, such as log-probabilities and values: on the devices that train it."""
    GENERATE = "Generate"
    """Responses to prompts: its weights go to the devices that generate whenever they have
    changed."""


def _calls_are_named_once(group: RoleGroup) -> Iterator[Violation]:
    for place, kind in enumerate(group.calls):
        if kind in group.calls[:place]:
            yield Violation(kind.value, ("calls", place))


def _generation_has_no_stages(group: RoleGroup) -> list[Violation]:
    generates = group.calls == (RoleCalls.GENERATE,)
    return violation_if(generates and group.pipeline is not None, group.pipeline)


class RoleGroup(Contract):
    """Roles, or some of their calls, and the devices for them: consecutive ones of a pool. Groups
    may share devices."""

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
    """Which calls of these roles: Train, Infer, Generate. Default: all that no other group names of
    a role."""
    pool: Name | None = None
    """The node pool. Default: the only one that the groups name, or that there is."""
    first_device: Annotated[int, Field(ge=0, le=MAX_DEVICES - 1)] = 0
    """The first of its devices, counted from 0 over the pool's nodes."""
    devices: Annotated[int, Field(ge=1, le=MAX_DEVICES)] | None = None
    """How many. Default: the rest of the pool."""
    tensor: Annotated[int, Field(ge=1, le=1024)] | None = None
    """Devices over which each layer is cut in these calls. Default: for Generate
    rollout.parallelism.tensor, else training.parallelism.tensor of the role."""
    pipeline: Annotated[int, Field(ge=1, le=1024)] | None = None
    """Stages over which the layers are distributed in Train and Infer. Default:
    training.parallelism.pipeline of the role."""

    @property
    def name(self) -> str:
        """Which it is, for people."""
        kinds = f" for {', '.join(self.calls)}" if self.calls else ""
        return f"{', '.join(self.roles)}{kinds}"


class PlacementSpec(Contract):
    """How roles share devices."""

    type: PlacementType = PlacementType.AUTO
    """Auto, Colocated, Split, Standalone or Manual."""
    objective: PlacementObjective = PlacementObjective()
    """What the plan is to be best at: least time per step, least device time per step, or the
    fewest devices that are fast enough."""
    max_devices: Count | None = None
    """Use at most so many devices of the pool; not for Manual. Default: all."""
    groups: Annotated[tuple[RoleGroup, ...], Field(max_length=16)] = ()
    """For Manual: every call of every role with a model is in one of them."""


def _is_groups(spec: RLHFJobSpec) -> bool:
    return spec.placement.type is PlacementType.MANUAL


def _groups_are_there(spec: RLHFJobSpec) -> list[Violation]:
    return violation_if(_is_groups(spec) and not spec.placement.groups, "none")


def _groups_are_wanted(spec: RLHFJobSpec) -> list[Violation]:
    kind = spec.placement.type
    return violation_if(not _is_groups(spec) and bool(spec.placement.groups), kind.value)


def _groups_name_their_devices(spec: RLHFJobSpec) -> list[Violation]:
    limit = spec.placement.max_devices
    return violation_if(_is_groups(spec) and limit is not None, limit)


def _roles_stand_once(spec: RLHFJobSpec) -> Iterator[Violation]:
    seen: set[tuple[str, RoleCalls | None]] = set()
    for number, group in enumerate(spec.placement.groups):
        for place, role in enumerate(group.roles):
            held = {(role, kind) for kind in dict.fromkeys(group.calls or (None,))}
            if held & seen:
                yield Violation(role, ("placement", "groups", number, "roles", place))
            seen |= held


def _pools_of_groups_are_there(spec: RLHFJobSpec) -> Iterator[Violation]:
    names = [pool.name for pool in spec.resources.node_pools]
    for number, group in enumerate(spec.placement.groups):
        if names and group.pool is not None and group.pool not in names:
            near = get_close_matches(group.pool, names, n=1)
            do = f"did you mean {near[0]}?" if near else ""
            where = ("placement", "groups", number, "pool")
            yield Violation(group.pool, where, ", ".join(names), do)


def _groups_name_one_of_several_pools(spec: RLHFJobSpec) -> Iterator[Violation]:
    names = [pool.name for pool in spec.resources.node_pools]
    names = names or [group.pool for group in spec.placement.groups if group.pool is not None]
    for number, group in enumerate(spec.placement.groups):
        if group.pool is None and len(set(names)) > 1:
            where = ("placement", "groups", number, "pool")
            yield Violation("none", where, ", ".join(dict.fromkeys(names)))


def _groups_lie_in_their_pools(spec: RLHFJobSpec) -> Iterator[Violation]:
    pools = spec.resources.node_pools
    for number, group in enumerate(spec.placement.groups):
        named = [pool for pool in pools if pool.name == group.pool]
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


def _several_pools_are_shared_out(spec: RLHFJobSpec) -> list[Violation]:
    pools, kind = spec.resources.node_pools, spec.placement.type
    is_placed = kind in MULTI_POOL_PLACEMENTS
    if kind is PlacementType.AUTO:
        is_placed = all(pool.gpu is not None or pool.hardware is not None for pool in pools)
    return violation_if(len(pools) > 1 and not is_placed, ", ".join(pool.name for pool in pools))


def _one_pool_is_limited(spec: RLHFJobSpec) -> list[Violation]:
    pools, limit = spec.resources.node_pools, spec.placement.max_devices
    is_shared_out = spec.placement.type in PLANNER_CHOOSES_POOLS
    return violation_if(len(pools) > 1 and is_shared_out and limit is not None, limit)


_GROUPS = "self.placement.groups"
_POOLS = "self.resources.nodePools"
_ONE_NAME = (
    f"{_GROUPS}.all(one, !has(one.pool) || {_GROUPS}.all(other, !has(other.pool) || "
    "other.pool == one.pool))"
)

PLACEMENT_RULES: tuple[Rule, ...] = (
    Rule(
        holds=f"self.placement.type != 'Manual' || {_GROUPS}.size() > 0",
        what="placement Manual without a group",
        do="add one for every set of roles that share devices, or write type: Colocated",
        field=".placement.groups",
        check=_groups_are_there,
    ),
    Rule(
        holds=f"self.placement.type == 'Manual' || {_GROUPS}.size() == 0",
        what="groups beside another type of placement",
        got="self.placement.type",
        allowed="Manual",
        do="write type: Manual, or remove the groups",
        field=".placement.groups",
        check=_groups_are_wanted,
    ),
    Rule(
        holds="self.placement.type != 'Manual' || !has(self.placement.maxDevices)",
        what="a limit of devices beside groups that name theirs",
        do="remove it, and give the groups fewer devices",
        field=".placement.maxDevices",
        check=_groups_name_their_devices,
    ),
    Rule(
        holds=f"{_GROUPS}.all(group, group.roles.all(role, {_GROUPS}.map(other, "
        "(group.calls.size() == 0 ? other.calls.size() == 0 : "
        "group.calls.exists(kind, kind in other.calls)) ? "
        "other.roles.filter(each, each == role).size() : 0).sum() == 1))",
        what="a role twice among the groups, for the same calls",
        do="name it once, or let each of them have other calls of it",
        field=".placement.groups",
        check=_roles_stand_once,
    ),
    Rule(
        holds=f"{_POOLS}.size() == 0 || {_GROUPS}.all(group, !has(group.pool) || "
        f"{_POOLS}.exists(pool, pool.name == group.pool))",
        what="a group in a pool that the job does not have",
        allowed="a name of resources.nodePools",
        do="correct it, or add the pool",
        field=".placement.groups",
        check=_pools_of_groups_are_there,
    ),
    Rule(
        holds=f"{_POOLS}.size() == 1 || ({_POOLS}.size() == 0 && {_ONE_NAME}) || "
        f"{_GROUPS}.all(group, has(group.pool))",
        what="a group that does not say in which of several pools it is",
        allowed="the name of a pool",
        do="name its pool",
        field=".placement.groups",
        check=_groups_name_one_of_several_pools,
    ),
    Rule(
        holds=f"{_GROUPS}.all(group, {_POOLS}.all(pool, (has(group.pool) ? "
        f"pool.name != group.pool : {_POOLS}.size() > 1) || group.firstDevice + "
        "(has(group.devices) ? group.devices : 1) <= pool.nodes * pool.devicesPerNode))",
        what="a group with devices that its pool does not have",
        allowed="firstDevice + devices of at most nodes x devicesPerNode",
        do="lower firstDevice or devices, or add nodes",
        field=".placement.groups",
        check=_groups_lie_in_their_pools,
    ),
    Rule(
        holds=f"{_POOLS}.size() <= 1 || "
        f"self.placement.type in {texts([kind.value for kind in MULTI_POOL_PLACEMENTS])} || "
        f"(self.placement.type == 'Auto' && {_POOLS}.all(pool, has(pool.gpu) || "
        "has(pool.hardware)))",
        what="several pools, and nothing says which role is in which",
        do="name the GPUs of each pool (gpu, or hardware) and let type: Auto share them out, write "
        "type: Manual with the groups of roles, Split or Standalone, or leave one pool",
        field=".placement.type",
        check=_several_pools_are_shared_out,
    ),
    Rule(
        holds=f"{_POOLS}.size() <= 1 || !has(self.placement.maxDevices) || "
        f"!(self.placement.type in {texts([kind.value for kind in PLANNER_CHOOSES_POOLS])})",
        what="a limit of devices beside several pools",
        do="remove it, and give the pools fewer nodes",
        field=".placement.maxDevices",
        check=_one_pool_is_limited,
    ),
)
"""They stand at the spec: the API server checks the default of an object that is left out before
its fields get theirs."""
