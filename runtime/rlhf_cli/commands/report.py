"""`rlhf report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def report(
    run_dir: Annotated[Path, typer.Argument(metavar="FOLDER", help="The folder of a run.")],
) -> None:
    """Summarize a run, finished or not, and write its report.

    \b
    Examples:
      rlhf report rlhf-runs/sort-grpo
    """
    from rich.console import Console

    from rlhf_runtime.telemetry.plan_section import times_text
    from rlhf_runtime.telemetry.report import compare_times, write_report
    from rlhf_runtime.telemetry.run_folder import RunFolder
    from rlhf_runtime.telemetry.summary import summarize
    from rlhf_runtime.telemetry.summary_table import summary_table

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
