"""Memory that is used only part of the time: offloaded roles, and standby libraries. Pure.

An offloaded role is on the host while others need its devices. Loads and offloads are added to the
calls of each graph. Standby libraries are those of workers between two starts.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product

from rlhf_api.calls import LOAD, OFFLOAD, CallKind, Phase, call_phase
from rlhf_api.plan import OffloadDepth, Pool
from rlhf_api.plan_memory import MemoryItem, MemoryUse
from rlhf_api.plan_text import format_bytes
from rlhf_api.spec.models import Offload, Precision
from rlhf_api.spec.resources import Device
from rlhf_flow.step.calls import ModelCall
from rlhf_planner.memory.role_model import standby_item
from rlhf_planner.placement.placement import DeviceGroup, GroupMemory
from rlhf_planner.placement.strategy import RoleStrategy
from rlhf_planner.placement.transitions import LIGHT, region_of
from rlhf_planner.problem.problem import Constraints, PlanningProblem, RoleSpec

# State that the host has a copy of; gradients exist during updates only.
COPIED = (MemoryUse.WEIGHTS, MemoryUse.MASTER_WEIGHTS, MemoryUse.OPTIMIZER)

# The reason for a choice by time.
FASTEST = "part of the fastest plan that fits"

DEPTH_TEXTS = {
    OffloadDepth.DERIVED: (
        "weights on their devices for their own calls only, rebuilt from master weights"
    ),
    OffloadDepth.EVERYTHING: "on their devices for their own calls only, else offloaded",
}


DERIVED, EVERYTHING = OffloadDepth.DERIVED, OffloadDepth.EVERYTHING
# Depths of a role that leaves its devices, the faster one first.
DEPTHS = (DERIVED, EVERYTHING)

# The depth of each role that leaves its devices, in full or in part: it is complete on them only
# for its own calls.
Depths = Mapping[str, OffloadDepth]


def offload_depths(roles: Mapping[str, RoleStrategy]) -> Depths:
    """The roles that leave their devices, and how much of each."""
    return {
        role: strategy.offload
        for role, strategy in roles.items()
        if strategy.offload not in (None, OffloadDepth.NOTHING)
    }


def copied_by_choice(problem: PlanningProblem, depths: Depths) -> frozenset[str]:
    """Roles that are copied to the host by choice of the plan."""
    return frozenset(
        role
        for role, depth in depths.items()
        if depth is OffloadDepth.EVERYTHING and not _is_forced(problem, role)
    )


def _is_forced(problem: PlanningProblem, role: str) -> bool:
    """True if the manifest says whether a role leaves its devices."""
    return problem.models[role].fixed.offload is not Offload.AUTO


# Limit of combinations of depths that a search compares for a placement.
MAX_COMBINATIONS = 32


def offload_choices(problem: PlanningProblem, groups: Sequence[DeviceGroup]) -> tuple[Depths, ...]:
    """Choices of offloaded roles in which all that may leave their devices do, or none; fastest
    first by rule.

    Args:
        problem: the planning problem.
        groups: all devices.
    """
    forced, optional = _forced(problem, groups), _optional(problem, groups)
    # Rebuilding derived state takes less time than copies to the host and back.
    choices = [
        forced,
        forced | {role: DERIVED for role, depths in optional.items() if DERIVED in depths},
        forced | dict.fromkeys(optional, EVERYTHING),
    ]
    return tuple(depths for number, depths in enumerate(choices) if depths not in choices[:number])


def offload_combinations(
    problem: PlanningProblem,
    groups: Sequence[DeviceGroup],
    max_combinations: int = MAX_COMBINATIONS,
) -> Iterator[Depths]:
    """Choices of offloaded roles, for each role by itself.

    Args:
        problem: the planning problem.
        groups: all devices.
        max_combinations: limit. If there are more, only the roles with most state have a depth of
            their own; the others all have the same.
    """
    forced, optional = _forced(problem, groups), _optional(problem, groups)
    # By shapes, not by memory: more memory must not change what is compared.
    order = sorted(optional, key=lambda role: -_state_weight(problem.models[role]))
    own: list[str] = []
    number = 1
    for role in order:
        number *= 1 + len(optional[role])
        # Twice as many, as the others have all of one depth or another.
        if number * (1 + len(DEPTHS)) > max_combinations and len(order) > len(own) + 1:
            break
        own.append(role)
    others = [role for role in order if role not in own]
    for chosen in product(*((None, *optional[role]) for role in own)):
        depths = forced | {r: depth for r, depth in zip(own, chosen, strict=True) if depth}
        yield depths
        for depth in DEPTHS if others else ():
            with_others = {role: depth for role in others if depth in optional[role]}
            if with_others:
                yield depths | with_others


def _forced(problem: PlanningProblem, groups: Sequence[DeviceGroup]) -> dict[str, OffloadDepth]:
    """Depths that the manifest fixes."""
    roles = dict.fromkeys(role for group in groups for role in group.roles)
    requested = {role: problem.models[role].fixed.offload for role in roles}
    always = {role: EVERYTHING for role in roles if requested[role] is Offload.ALWAYS}
    return always | {
        role: DERIVED
        for role in roles
        if requested[role] is Offload.DERIVED and _has_masters(problem.models[role])
    }


def _optional(
    problem: PlanningProblem, groups: Sequence[DeviceGroup]
) -> dict[str, tuple[OffloadDepth, ...]]:
    """Possible depths of the roles for which they are open."""
    # Offloading a role that is alone on its devices frees memory for no other.
    shared = {
        role
        for group in groups
        if len(group.roles) + len(group.generating) > 1
        for role in group.roles
    }
    return {
        role: DEPTHS if _has_masters(problem.models[role]) else (EVERYTHING,)
        for role in dict.fromkeys(role for group in groups for role in group.roles)
        if role in shared and problem.models[role].fixed.offload is Offload.AUTO
    }


def _state_weight(facts: RoleSpec) -> int:
    """Bytes of a role's state, up to a factor."""
    # Master weights and two moments of 4 bytes each, or weights of 2.
    return facts.num_parameters * (6 if facts.is_trained else 1)


def _has_masters(facts: RoleSpec) -> bool:
    """True if a trained role computes with other weights than its optimizer updates."""
    # Megatron keeps bfloat16 weights beside float32 masters; FSDP casts its masters for each pass.
    return facts.is_trained and facts.uses_megatron and facts.precision is Precision.BFLOAT16


def roles_on_device(call: ModelCall) -> frozenset[str]:
    """Roles whose trainers a call works with."""
    match call.kind:
        case CallKind.INFER | CallKind.TRAIN | CallKind.RESHARD:
            roles = {call.role}
        case CallKind.COPY:
            roles = {call.role, call.copied_role}
        case _:
            roles = set()
    return frozenset(role for role in roles if role is not None)


def phases_on_device(role: str, calls: Iterable[ModelCall]) -> frozenset[Phase]:
    """Phases in which an offloaded role is on its devices.

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
    """Add loads and offloads to the calls of a graph.

    A role is loaded before the first call that works with its trainer. It is offloaded before the
    next call on its ranks that needs memory without it, or at the end of a pass or region.

    Args:
        calls: in program order, with reshards and releases.
        offloaded: the roles.
        needs_ranks_of: True if a call runs on ranks of a role's trainer.

    Source: ReaL (arXiv 2406.14088), section 4; HybridFlow (arXiv 2409.19256), section 5.
    """
    result: list[ModelCall] = []
    counts: dict[str, int] = {}
    loaded: dict[str, None] = {}  # in order
    region = ""
    # Transfers go before the calls without memory that precede the call, so that weights travel
    # while the call waits for these, such as for rewards.
    position = 0

    def move(role: str, method: str, kind: CallKind) -> None:
        nonlocal position
        name = f"{region}{'/' if region else ''}{role}.{method}"
        counts[name] = counts.get(name, 0) + 1
        site = name if counts[name] == 1 else f"{name}#{counts[name]}"
        result.insert(position, ModelCall(site, role, method, kind, (), ()))
        position += 1

    def offload(roles: Iterable[str]) -> None:
        for role in list(roles):
            move(role, OFFLOAD, CallKind.OFFLOAD)
            del loaded[role]

    for call in calls:
        if region_of(call) != region:
            # A region may run or not, so nothing stays loaded across its borders.
            offload(loaded)
            region, position = region_of(call), len(result)
        if call.role is not None and call.kind not in (*LIGHT, CallKind.RELEASE):
            needed = roles_on_device(call)
            offload(r for r in loaded if r not in needed and needs_ranks_of(call, r))
            for role in sorted(needed & {*offloaded} - loaded.keys()):
                move(role, LOAD, CallKind.LOAD)
                loaded[role] = None
        result.append(call)
        if call.kind not in LIGHT:
            position = len(result)
    offload(loaded)
    return result


def offload_reasons(
    problem: PlanningProblem,
    depths: Depths,
    items: Sequence[Sequence[MemoryItem]],
    is_chosen: bool = False,
) -> tuple[str, ...]:
    """Sentences about offloaded roles, with the memory of the host.

    Args:
        problem: the planning problem.
        depths: of the roles that leave their devices.
        items: uses of memory on each group of devices.
        is_chosen: True if it was chosen by time, False for the first feasible one.
    """
    why_not_all = "not everything fits on the devices at once"
    parts = ((True, "as training.offload says"), (False, FASTEST if is_chosen else why_not_all))
    reasons = [
        f"{DEPTH_TEXTS[depth]}: {', '.join(sorted(roles))}; {why}"
        for depth in DEPTH_TEXTS
        for is_forced, why in parts
        if (
            roles := [
                role
                for role, role_depth in depths.items()
                if role_depth is depth and _is_forced(problem, role) is is_forced
            ]
        )
    ]
    without_masters = [
        role
        for role, facts in problem.models.items()
        if facts.fixed.offload is Offload.DERIVED and not _has_masters(facts)
    ]
    if without_masters:
        names = ", ".join(sorted(without_masters))
        reasons.append(
            f"training.offload Derived gives nothing back of {names}: only roles that are trained "
            "in bfloat16 have master weights beside those that they compute with"
        )
    offloaded = [role for role, depth in depths.items() if depth is OffloadDepth.EVERYTHING]
    if offloaded:
        size = max(
            sum(i.bytes for i in group_items if i.role in offloaded and i.what in COPIED)
            for group_items in items
        )
        storage = "pinned memory of the host" if problem.device is Device.GPU else "temporary files"
        reasons.append(
            f"copies of what is offloaded are in {storage}, up to {format_bytes(size)} for each "
            "device, which is not counted here"
        )
    return tuple(reasons)


def required_standby(
    fixed: Constraints, pool: Pool, phases: tuple[Phase, ...]
) -> tuple[MemoryItem, ...]:
    """Memory of standby libraries on each device, if the manifest demands them."""
    return _items(pool, phases) if fixed.standby else ()


def with_standby(
    fixed: Constraints, memory: tuple[GroupMemory, ...]
) -> tuple[tuple[GroupMemory, ...], bool, str]:
    """Add standby libraries if they fit; also returns whether they stand by, and why.

    Args:
        fixed: constraints of the manifest.
        memory: all else, with what `required_standby` adds.
    """
    requested = fixed.standby
    if requested is not None:
        return memory, requested, _reason(requested, "as failurePolicy.standby says")
    more = tuple(
        replace(
            group_memory,
            items=group_memory.items + _items(group_memory.group.pool, group_memory.phases),
        )
        for group_memory in memory
    )
    if more == memory:
        return memory, True, _reason(True, "in the memory of the host")
    # Nothing else changes for standby: if it does not fit it is dropped.
    largest = max(extended.items[-1].bytes for extended in more)
    size = f"{format_bytes(largest)} of each device"
    if all(group_memory.excess_bytes <= 0 for group_memory in more):
        return more, True, _reason(True, f"they take {size}")
    return memory, False, _reason(False, f"{size} do not fit beside all else")


def _items(pool: Pool, phases: tuple[Phase, ...]) -> tuple[MemoryItem, ...]:
    # The fork server uses the host's memory, which is that of ranks only on CPUs.
    return (standby_item(pool.devices_per_node, phases),) if pool.device is Device.CPU else ()


def _reason(stands_by: bool, why: str) -> str:
    begin = "libraries stand by for" if stands_by else "no libraries stand by for"
    return f"{begin} the next start of workers: {why}"
