"""The plan as tables: devices of calls, roles, memory and reasons. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from rlhf_api.plan import CallPlan, ModelHead, Plan, RolePlan
from rlhf_api.plan_memory import MemoryPlan
from rlhf_api.plan_text import describe_devices, describe_groups
from rlhf_runtime.telemetry.metric_names import format_bytes


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of plain texts; the first column names the row."""
    cells = "".join(f'<th scope="col">{escape(name)}</th>' for name in head)
    body = "".join(
        f'<tr><th scope="row">{escape(row[0])}</th>'
        + "".join(f"<td>{escape(cell)}</td>" for cell in row[1:])
        + "</tr>"
        for row in rows
    )
    return (
        f'<div class="scroll"><table><thead><tr>{cells}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def plan_tables(plan: Plan) -> str:
    """Calls, roles, memory and reasons of a plan."""
    calls = [[c.call, c.graph.value, c.kind.value, _devices(c)] for c in plan.calls]
    roles = [
        [
            role.role,
            _model(role),
            _use(role),
            f"{role.num_parameters:,}" if role.num_parameters else "–",
            role.precision.value if role.precision else "–",
            role.origin or "–",
        ]
        for role in plan.roles
    ]
    return (
        "<h3>Calls</h3>"
        + table(["Call", "Graph", "Kind", "Devices"], calls)
        + "<h3>Roles</h3>"
        + table(["Role", "Model", "Use", "Parameters", "Precision", "Weights of"], roles)
        + "".join(_memory(plan, memory) for memory in plan.memory)
        + _reasons(plan)
    )


def _model(role: RolePlan) -> str:
    match role.head:
        case ModelHead.LM:
            return "language model"
        case ModelHead.SCALAR:
            return "scalar model"
        case None:
            return "–"


def _use(role: RolePlan) -> str:
    uses = [("trained", role.is_trained), ("generates", role.generates)]
    return ", ".join(name for name, is_used in uses if is_used) or "read"


def _devices(call: CallPlan) -> str:
    if call.mesh is None:
        return call.off_rank_process
    mesh = call.mesh
    axes = [("data", mesh.data), ("tensor", mesh.tensor), ("pipeline", mesh.pipeline)]
    cut = " × ".join(f"{name} {size}" for name, size in axes if size > 1 or name == "data")
    groups = f" in groups {describe_groups(mesh)}" if mesh.tensor_stride > 1 else ""
    source = call.source_mesh
    # A call that copies weights may read them on other devices.
    is_elsewhere = source is not None and source.ranks != mesh.ranks
    origin = f"{describe_devices(source.ranks, source.pool)} to " if is_elsewhere and source else ""
    return f"{origin}{describe_devices(mesh.ranks, mesh.pool)}: {cut}{groups}"


def _memory(plan: Plan, memory: MemoryPlan) -> str:
    devices = "" if len(plan.memory) == 1 else f": {describe_devices(memory.ranks, memory.pool)}"
    capacity = max(memory.capacity_bytes, 1)
    rows = "".join(
        f'<li><span>{escape(str(peak.phase))}</span><span class="meter"><i class="b0" '
        f'style="width:{min(100.0, peak.bytes / capacity * 100):.1f}%"></i></span>'
        f"<b>{format_bytes(peak.bytes)}</b></li>"
        for peak in memory.peaks
    )
    total = format_bytes(memory.capacity_bytes)
    title = f"<h3>Memory of one device{escape(devices)}</h3>"
    return f'{title}<ul class="bars">{rows}</ul><p class="note">Planned peaks, of {total}.</p>'


def _reasons(plan: Plan) -> str:
    if not plan.reasons:
        return ""
    items = "".join(f"<li>{escape(reason)}</li>" for reason in plan.reasons)
    return f'<h3>Why</h3><ul class="reasons">{items}</ul>'
