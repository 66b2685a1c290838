"""Records of a run, read from its files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def records(folder: Path, kind: str) -> list[dict[str, Any]]:
    """Records of a kind, in order."""
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [record for record in map(json.loads, lines) if record["kind"] == kind]


def step_metrics(folder: Path) -> list[dict[str, float]]:
    """Metrics of training steps."""
    return [record["metrics"] for record in records(folder, "step")]


def repeated(folder: Path) -> dict[int, list[dict[str, float]]]:
    """Metrics by step that do not depend on the machine's pace, of steps that ran several times."""
    values: dict[int, list[dict[str, float]]] = {}
    for record in records(folder, "step"):
        values.setdefault(record["step"], []).append(without_pace(record["metrics"]))
    return {step: runs for step, runs in values.items() if len(runs) > 1}


def reproducible(folder: Path) -> list[tuple[str, int, dict[str, float]]]:
    """Metrics that do not depend on the machine's pace, with kind of record and step."""
    return [
        (kind, record["step"], without_pace(record["metrics"]))
        for kind in ("warm_start", "evaluation", "step")
        for record in records(folder, kind)
    ]


def without_pace(metrics: dict[str, float]) -> dict[str, float]:
    return {
        name: value
        for name, value in metrics.items()
        if name.partition("/")[0] not in ("time", "throughput", "memory")
    }


def end(folder: Path) -> dict[str, Any]:
    """The only record of kind `end`."""
    (record,) = records(folder, "end")
    return record
