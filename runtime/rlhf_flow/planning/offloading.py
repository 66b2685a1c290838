"""Which roles are on the host while others need their devices, and where a pass loads and offloads
them. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

from rlhf_api import RLHFJob
from rlhf_api.plan import CallKind, phase_name
from rlhf_api.plan_memory import MemoryItem, MemoryWhat
from rlhf_api.spec.models import Offload
from rlhf_api.spec.resources import Device
from rlhf_flow.calls import ModelCall
from rlhf_flow.planning.device_groups import DeviceGroup
from rlhf_flow.planning.refusal import format_bytes
from rlhf_flow.planning.transitions import LIGHT, region_of

LOAD, OFFLOAD = "load", "offload"
"""The methods of such calls."""

COPIED = (MemoryWhat.WEIGHTS, MemoryWhat.MASTER_WEIGHTS, MemoryWhat.OPTIMIZER)
"""What the host has a copy of; gradients come back as zeros."""


@dataclass(frozen=True)
class OffloadChoice:
    """One way to offload roles."""

    roles: frozenset[str]
    """That are on their devices for their own calls only."""
    forced: frozenset[str]
    """Those of them whose manifest says so."""
    forbidden: frozenset[str]
    """Others that could be, but for their manifest."""

    @property
    def note(self) -> str:
        """What a person should know where it does not fit, as lines; empty if nothing."""
        lines = []
        if self.roles:
            lines.append(f"\n(with {', '.join(sorted(self.roles))} offloaded while others work)")
        if self.forbidden:
            names = ", ".join(sorted(self.forbidden))
            lines.append(f"\n(training.offload forbids to offload {names}: Auto would allow it)")
        return "".join(lines)


def offload_choices(job: RLHFJob, groups: Sequence[DeviceGroup]) -> tuple[OffloadChoice, ...]:
    """The ways to offload roles, best first: those that must be, then all that may be and that
    leave their devices to something.

    Args:
        job: the manifest.
        groups: all devices.
    """
    roles = dict.fromkeys(role for group in groups for role in group.roles)
    shared = {
        role
        for group in groups
        if len(group.roles) + len(group.generating) > 1
        for role in group.roles
    }
    wanted = {role: job.spec.model_for(role).training.offload for role in roles}
    forced = frozenset(role for role in roles if wanted[role] is Offload.ALWAYS)
    may = forced | {role for role in shared if wanted.get(role) is Offload.AUTO}
    never = frozenset(role for role in shared if wanted.get(role) is Offload.NEVER)
    choices = (OffloadChoice(forced, forced, never), OffloadChoice(may, forced, never))
    return choices if may != forced else choices[:1]


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


def phases_on_device(role: str, calls: Iterable[ModelCall]) -> frozenset[str]:
    """The phases in which an offloaded role is on its devices.

    Args:
        role: its name.
        calls: of all graphs, as steps make them.
    """
    own = {
        phase_name(call.role, call.kind)
        for call in calls
        if call.role is not None and role in roles_on_device(call)
    }
    return frozenset({*own, phase_name(role, CallKind.RESHARD)})


def with_offloading(
    calls: Sequence[ModelCall],
    offloaded: Collection[str],
    needs_ranks_of: Callable[[ModelCall, str], bool],
) -> list[ModelCall]:
    """The calls of a graph with those that bring offloaded roles to their devices and back.

    A role is loaded before the first call that works with its trainer, and offloaded before the
    next call of its ranks that needs memory and does not; at the end of a pass or region in any
    case, so that nothing is loaded where one begins, whether it runs or not.

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

    def move(role: str, method: str, kind: CallKind) -> None:
        name = f"{region}{'/' if region else ''}{role}.{method}"
        counts[name] = counts.get(name, 0) + 1
        site = name if counts[name] == 1 else f"{name}#{counts[name]}"
        made.append(ModelCall(site, role, method, kind, (), ()))

    def offload(roles: Iterable[str]) -> None:
        for role in list(roles):
            move(role, OFFLOAD, CallKind.OFFLOAD)
            del loaded[role]

    for call in calls:
        if region_of(call) != region:
            offload(loaded)
            region = region_of(call)
        if call.role is not None and call.kind not in (*LIGHT, CallKind.RELEASE):
            needed = roles_on_device(call)
            offload(r for r in loaded if r not in needed and needs_ranks_of(call, r))
            for role in sorted(needed & {*offloaded} - loaded.keys()):
                move(role, LOAD, CallKind.LOAD)
                loaded[role] = None
        made.append(call)
    offload(loaded)
    return made


def offload_reasons(
    choice: OffloadChoice, device: Device, items: Sequence[Sequence[MemoryItem]]
) -> tuple[str, ...]:
    """Which roles are offloaded, why, and what the host then holds.

    Args:
        choice: what was chosen.
        device: what ranks compute on.
        items: uses of memory on each group of devices.
    """
    if not choice.roles:
        return ()
    size = max(
        sum(i.bytes for i in of_group if i.role in choice.roles and i.what in COPIED)
        for of_group in items
    )
    where = "pinned memory of the host" if device is Device.GPU else "temporary files"
    parts = (
        (choice.forced, "as training.offload says"),
        (choice.roles - choice.forced, "not everything fits on the devices at once"),
    )
    return (
        *(
            "on their devices for their own calls only, else offloaded: "
            f"{', '.join(sorted(roles))}; {why}"
            for roles, why in parts
            if roles
        ),
        f"copies of what is offloaded are in {where}, up to {format_bytes(size)} for each device, "
        "which is not counted here",
    )
