"""Read an earlier plan, and print how two plans of a job differ."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError
from rich.table import Table

from rlhf_api.errors import ManifestError
from rlhf_api.mesh import Mesh
from rlhf_api.plan import GenerationPlan, Plan
from rlhf_api.problems import Problem

if TYPE_CHECKING:
    from rich.console import Console


def read_plan(file: Path) -> Plan:
    """Read a plan that `rlhf plan -o json` has printed.

    Raises:
        ManifestError: the file does not exist, or is not a plan.
    """
    try:
        return Plan.model_validate_json(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, ValidationError) as error:
        why = error.strerror if isinstance(error, OSError) else "no plan of this version"
        raise ManifestError(
            [
                Problem(
                    (),
                    "--diff does not name a plan",
                    got=f"{file} ({why})",
                    allowed="what `rlhf plan FILE -o json` prints",
                    do="print one to a file",
                )
            ]
        ) from error


def print_diff(plan: Plan, other: Plan, console: Console) -> None:
    """Print a table of the values in which two plans differ."""
    facts, other_facts = dict(_facts(plan)), dict(_facts(other))
    table = Table(box=None, padding=(0, 3, 0, 0))
    for name in ("", "this plan", "the other"):
        table.add_column(name)
    for name in dict.fromkeys([*facts, *other_facts]):
        value, other_value = facts.get(name, "-"), other_facts.get(name, "-")
        if value != other_value:
            table.add_row(name, value, other_value)
    console.print()
    console.print(table if table.row_count else "The plans are the same.")


def _facts(plan: Plan) -> Iterator[tuple[str, str]]:
    """Values to compare, by name."""
    from rlhf_api.plan_text import format_bytes
    from rlhf_planner.timeline.rows import format_time

    for pool in plan.pools:
        kind = pool.gpu or pool.device.value
        yield f"pool {pool.name}", f"{pool.nodes} x {pool.devices_per_node} {kind}"
    for role in plan.roles:
        if role.mesh is not None and role.engine is not None:
            yield f"{role.role}: devices", _devices(role.mesh)
            yield f"{role.role}: trained by", role.engine.value
            yield f"{role.role}: micro-batch tokens", str(role.micro_batch_tokens)
            yield f"{role.role}: activations", "recomputed" if role.recomputes else "kept"
            yield f"{role.role}: offloaded", role.offload.value
    for engine in plan.generations:
        yield f"{engine.role}: engines", _devices(engine.mesh)
        yield f"{engine.role}: cache", format_bytes(engine.kv_cache_bytes)
        yield f"{engine.role}: stage fusion", _fusion(engine, plan)
    yield "fullest device", format_bytes(plan.fullest.peak_bytes)
    if plan.estimate is not None:
        for call in plan.estimate.calls:
            yield call.call, format_time(call.seconds)
        yield "a step", format_time(plan.estimate.step_seconds)


def _fusion(engine: GenerationPlan, plan: Plan) -> str:
    """The stage fusion of an engine, if it has one."""
    from rlhf_planner.cost.fusion import fusion_of

    fusion = fusion_of(plan)
    if engine.fusion is None or fusion is None:
        return "none"
    return (
        f"{fusion.threshold_rows} responses on {_devices(fusion.mesh)}, during "
        f"{', '.join(fusion.calls)}"
    )


def _devices(mesh: Mesh) -> str:
    last = mesh.ranks.stop - 1
    return (
        f"{mesh.ranks.start} to {last} of {mesh.pool}: {mesh.data} x tensor {mesh.tensor} x "
        f"pipeline {mesh.pipeline}"
    )
