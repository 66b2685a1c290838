"""Which roles are on the host while others need their devices, and where a pass loads and offloads
them. Pure.

Whether the libraries of workers stay in memory between two of their starts.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from rlhf_api.calls import LOAD, OFFLOAD, CallKind, Phase, call_phase
from rlhf_api.plan import OffloadDepth, Pool
from rlhf_api.plan_memory import MemoryItem, MemoryUse
from rlhf_api.plan_text import format_bytes
from rlhf_api.spec.models import Offload, Precision
from rlhf_api.spec.resources import Device
from rlhf_flow.step.calls import ModelCall
from rlhf_planner.memory.items import standby_item
from rlhf_planner.placement.placement import DeviceGroup, GroupMemory
from rlhf_planner.placement.transitions import LIGHT, region_of
from rlhf_planner.problem.problem import Constraints, PlanningProblem, RoleSpec

"""The methods of such calls."""

COPIED = (MemoryUse.WEIGHTS, MemoryUse.MASTER_WEIGHTS, MemoryUse.OPTIMIZER)
"""What the host has a copy of; gradients have memory during updates only."""

FASTEST = "part of the fastest plan that fits"
"""Why, for what was chosen by time."""

DEPTH_TEXTS = {
    OffloadDepth.DERIVED: (
        "weights on their devices for their own calls only, made anew from master weights"
    ),
    OffloadDepth.EVERYTHING: "on their devices for their own calls only, else offloaded",
}


@dataclass(frozen=True)
class OffloadChoice:
    """One way to offload roles."""

    depths: Mapping[str, OffloadDepth]
    """Of those that are whole on their devices for their own calls only."""
    forced: frozenset[str]
    """Those of them whose manifest says so."""
    without_masters: frozenset[str] = frozenset()
    """Those whose manifest says Derived in vain."""

    @property
    def roles(self) -> frozenset[str]:
        """Those of which some or all leaves their devices."""
        return frozenset(self.depths)

    def depth_of(self, role: str) -> OffloadDepth:
        """How much of a role leaves its devices while others work there."""
        return self.depths.get(role, OffloadDepth.NOTHING)

    @property
    def chosen_to_copy(self) -> frozenset[str]:
        """Those that the host gets a copy of without the manifest's saying so."""
        return self.of_depth(OffloadDepth.EVERYTHING) - self.forced

    def of_depth(self, depth: OffloadDepth) -> frozenset[str]:
        """The roles of which as much leaves."""
        return frozenset(role for role, found in self.depths.items() if found is depth)


def offload_choices(
    problem: PlanningProblem, groups: Sequence[DeviceGroup]
) -> tuple[OffloadChoice, ...]:
    """The ways to offload roles, best first: those that must be; what can be derived of all that
    may be and that leave their devices to something; all of these.

    Args:
        problem: what is planned.
        groups: all devices.
    """
    roles = dict.fromkeys(role for group in groups for role in group.roles)
    shared = {
        role
        for group in groups
        if len(group.roles) + _num_generating(problem, group) > 1
        for role in group.roles
    }
    wanted = {role: problem.models[role].fixed.offload for role in roles}
    derivable = {role for role in roles if _has_masters(problem.models[role])}
    forced = {role: OffloadDepth.EVERYTHING for role in roles if wanted[role] is Offload.ALWAYS}
    forced |= {
        role: OffloadDepth.DERIVED
        for role in roles
        if wanted[role] is Offload.DERIVED and role in derivable
    }
    may = [role for role in roles if role in shared and wanted[role] is Offload.AUTO]
    found = [
        forced,
        forced | {role: OffloadDepth.DERIVED for role in may if role in derivable},
        forced | dict.fromkeys(may, OffloadDepth.EVERYTHING),
    ]
    in_vain = frozenset(
        role for role in roles if wanted[role] is Offload.DERIVED and role not in derivable
    )
    return tuple(
        OffloadChoice(depths, frozenset(forced), in_vain)
        for number, depths in enumerate(found)
        if depths not in found[:number]
    )


def _num_generating(problem: PlanningProblem, group: DeviceGroup) -> int:
    """Roles that really generate on a group's devices."""
    return sum(problem.models[role].generates for role in group.generating)


def _has_masters(facts: RoleSpec) -> bool:
    """Whether a role is trained that computes with other weights than those that are stepped, and
    keeps both."""
    return facts.is_trained and facts.uses_megatron and facts.precision is Precision.BFLOAT16


def roles_on_device(call: ModelCall) -> frozenset[str]:
    """The roles whose trainers a call works with."""
    match call.kind:
        case CallKind.INFER | CallKind.TRAIN | CallKind.RESHARD:
            roles = {call.role}
        case CallKind.COPY:
            roles = {call.role, call.copied_role}
        case _:
            roles = set()
    return frozenset(role for role in roles if role is not None)


def phases_on_device(role: str, calls: Iterable[ModelCall]) -> frozenset[Phase]:
    """The phases in which an offloaded role is on its devices.

    Args:
        role: its name.
        calls: of all graphs, as steps make them.
    """
    own = {
        call_phase(call.role, call.kind)
        for call in calls
        if call.role is not None and role in roles_on_device(call)
    }
    return frozenset({*own, call_phase(role, CallKind.RESHARD)})


def with_offloading(
    calls: Sequence[ModelCall],
    offloaded: Collection[str],
    needs_ranks_of: Callable[[ModelCall, str], bool],
) -> list[ModelCall]:
    """The calls of a graph with those that bring offloaded roles to their devices and back.

    A role is loaded before the first call that works with its trainer, and offloaded before the
    next call of its ranks that needs memory and does not; at the end of a pass or region in any
    case, so that nothing is loaded where one begins, whether it runs or not. Both come before the
    calls that need no memory and stand right before that call: what these wait for, such as
    rewards, is waited for while weights are on their way.

    Args:
        calls: in program order, with reshards and releases.
        offloaded: the roles.
        needs_ranks_of: whether a call runs on some of the ranks of a role's trainer.

    Source: ReaL (arXiv 2406.14088), section 4; HybridFlow (arXiv 2409.19256), section 5.
    """
    made: list[ModelCall] = []
    counts: dict[str, int] = {}
    loaded: dict[str, None] = {}  # in order
    region = ""
    place = 0  # where moves go

    def move(role: str, method: str, kind: CallKind) -> None:
        nonlocal place
        name = f"{region}{'/' if region else ''}{role}.{method}"
        counts[name] = counts.get(name, 0) + 1
        site = name if counts[name] == 1 else f"{name}#{counts[name]}"
        made.insert(place, ModelCall(site, role, method, kind, (), ()))
        place += 1

    def offload(roles: Iterable[str]) -> None:
        for role in list(roles):
            move(role, OFFLOAD, CallKind.OFFLOAD)
            del loaded[role]

    for call in calls:
        if region_of(call) != region:
            offload(loaded)
            region, place = region_of(call), len(made)
        if call.role is not None and call.kind not in (*LIGHT, CallKind.RELEASE):
            needed = roles_on_device(call)
            offload(r for r in loaded if r not in needed and needs_ranks_of(call, r))
            for role in sorted(needed & {*offloaded} - loaded.keys()):
                move(role, LOAD, CallKind.LOAD)
                loaded[role] = None
        made.append(call)
        if call.kind not in LIGHT:
            place = len(made)
    offload(loaded)
    return made


def offload_reasons(
    choice: OffloadChoice,
    device: Device,
    items: Sequence[Sequence[MemoryItem]],
    is_chosen: bool = False,
) -> tuple[str, ...]:
    """Which roles are offloaded, why, and what the host then holds.

    Args:
        choice: what was chosen.
        device: what ranks compute on.
        items: uses of memory on each group of devices.
        is_chosen: whether it was chosen by time, and not as the first that fits.
    """
    why_not_all = "not everything fits on the devices at once"
    parts = (
        (choice.forced, "as training.offload says"),
        (choice.roles - choice.forced, FASTEST if is_chosen else why_not_all),
    )
    away = choice.of_depth(OffloadDepth.EVERYTHING)
    reasons = [
        f"{DEPTH_TEXTS[depth]}: {', '.join(sorted(roles))}; {why}"
        for depth in DEPTH_TEXTS
        for forced, why in parts
        if (roles := forced & choice.of_depth(depth))
    ]
    if choice.without_masters:
        names = ", ".join(sorted(choice.without_masters))
        reasons.append(
            f"training.offload Derived gives nothing back of {names}: only roles that are trained "
            "in bfloat16 have master weights beside those that they compute with"
        )
    if away:
        size = max(
            sum(i.bytes for i in of_group if i.role in away and i.what in COPIED)
            for of_group in items
        )
        where = "pinned memory of the host" if device is Device.GPU else "temporary files"
        reasons.append(
            f"copies of what is offloaded are in {where}, up to {format_bytes(size)} for each "
            "device, which is not counted here"
        )
    return tuple(reasons)


def required_standby(
    fixed: Constraints, pool: Pool, phases: tuple[Phase, ...]
) -> tuple[MemoryItem, ...]:
    """What standing by takes of each device where the manifest insists on it."""
    return _items(pool, phases) if fixed.standby else ()


def with_standby(
    fixed: Constraints, memory: tuple[GroupMemory, ...]
) -> tuple[tuple[GroupMemory, ...], bool, str]:
    """Memory with what stands by, whether anything does, and why.

    Nothing else is changed for it: what does not fit beside the rest does not stand by.

    Args:
        fixed: what is decided already.
        memory: of all else, and of what `required_standby` asks for.
    """
    wanted = fixed.standby
    if wanted is not None:
        return memory, wanted, _reason(wanted, "as failurePolicy.standby says")
    more = tuple(
        replace(
            group_memory,
            items=group_memory.items + _items(group_memory.group.pool, group_memory.phases),
        )
        for group_memory in memory
    )
    if more == memory:
        return memory, True, _reason(True, "in the memory of the host")
    largest = max(each.items[-1].bytes for each in more)
    size = f"{format_bytes(largest)} of each device"
    if all(each.excess_bytes <= 0 for each in more):
        return more, True, _reason(True, f"they take {size}")
    return memory, False, _reason(False, f"{size} do not fit beside all else")


def _items(pool: Pool, phases: tuple[Phase, ...]) -> tuple[MemoryItem, ...]:
    """Memory of devices; that of the host is counted where they are its own."""
    return (standby_item(pool.devices_per_node, phases),) if pool.device is Device.CPU else ()


def _reason(stands_by: bool, why: str) -> str:
    begin = "libraries stand by for" if stands_by else "no libraries stand by for"
    return f"{begin} the next start of workers: {why}"
