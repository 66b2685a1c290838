"""`rlhf report FOLDER`: sum up a run, say where its plan expected other times, and write
report.html again from the files of its folder."""

from __future__ import annotations

from pathlib import Path

import typer
from rich.console import Console

from rlhf_runtime.telemetry.expected_times import times_text
from rlhf_runtime.telemetry.report import compare_times, write_report
from rlhf_runtime.telemetry.run_folder import RunFolder
from rlhf_runtime.telemetry.summary import summarize
from rlhf_runtime.telemetry.summary_table import summary_table


def report_command(run_dir: Path) -> None:
    """Write the report of a run, finished or not; print its summary and the report's path.

    Raises:
        NotARun: the folder holds no run; it ends the command with exit code 2.
    """
    folder = RunFolder(run_dir)
    path = write_report(folder)
    records, plan = folder.read(), folder.read_plan()
    console = Console(highlight=False)
    console.print(summary_table(summarize(records)))
    if plan is not None:
        text = times_text(plan, compare_times(plan, records, folder))
        if text:
            console.print(text, markup=False)
    typer.echo(f"wrote {path}")
