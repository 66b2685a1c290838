"""`rlhf report FOLDER`: sum up a run and write report.html again from the files of its folder."""

from __future__ import annotations

from pathlib import Path

import typer
from rich.console import Console

from rlhf_runtime.telemetry.report import write_report
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
    Console(highlight=False).print(summary_table(summarize(folder.read())))
    typer.echo(f"wrote {path}")
