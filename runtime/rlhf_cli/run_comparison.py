"""The runs that `rlhf compare` reads, and its tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from rlhf_cli.earlier_run import read_job
from rlhf_runtime.telemetry.comparison import (
    MAX_RUNS,
    ComparedRun,
    Row,
    different_settings,
    names_of,
    results,
)
from rlhf_runtime.telemetry.errors import WrongNumberOfRuns
from rlhf_runtime.telemetry.run_folder import RunFolder
from rlhf_runtime.telemetry.summary import summarize
from rlhf_runtime.telemetry.tracked_run import Setting, flat_settings


def read_runs(folders: Sequence[Path]) -> list[ComparedRun]:
    """Read runs, finished or not.

    Raises:
        NotARun: a folder contains no run.
        WrongNumberOfRuns: one run, or too many.
    """
    if not 2 <= len(folders) <= MAX_RUNS:
        raise WrongNumberOfRuns(
            f"runs are compared with each other: got {len(folders)}, allowed 2 to {MAX_RUNS}; give "
            "the folders of so many runs"
        )
    runs = []
    for name, path in zip(names_of(folders), folders, strict=True):
        folder = RunFolder(path)
        folder.require_run()
        records = folder.read()
        runs.append(ComparedRun(name, summarize(records), records, _settings(folder)))
    return runs


def comparison_tables(runs: Sequence[ComparedRun]) -> list[Table]:
    """Return the tables of results and of settings that differ."""
    names = [run.name for run in runs]
    tables = [_table("result", names, results(runs))]
    if settings := different_settings(runs):
        tables.append(_table("setting", names, settings))
    return tables


def comparison_document(runs: Sequence[ComparedRun]) -> dict[str, Any]:
    """Return the comparison as plain data."""
    return {
        "runs": [{"name": run.name, "summary": run.summary.to_json()} for run in runs],
        "settings": {row.name: list(row.values) for row in different_settings(runs)},
    }


def _settings(folder: RunFolder) -> Mapping[str, Setting] | None:
    job = read_job(folder)
    return None if job is None else {"name": job.name, **flat_settings(job.spec)}


def _table(kind: str, names: Sequence[str], rows: Sequence[Row]) -> Table:
    table = Table(box=None, padding=(0, 2), pad_edge=False)
    table.add_column(kind, style="dim", overflow="fold")
    for name in names:
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(row.name, *row.values)
    return table
