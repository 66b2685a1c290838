"""`rlhf compare`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def compare(
    run_dirs: Annotated[list[Path], typer.Argument(metavar="FOLDER...", help="Folders of runs.")],
    html: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Also write a page with the runs' curves together."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Compare runs, finished or not: results, and the settings that differ.

    \b
    Examples:
      rlhf compare rlhf-runs/sort-grpo rlhf-runs/sort-ppo
      rlhf compare rlhf-runs/sort-* --html comparison.html
      rlhf compare rlhf-runs/a rlhf-runs/b --json
    """
    import json

    from rlhf_cli.atomic_file import write_atomically
    from rlhf_cli.console import page_console
    from rlhf_cli.run_comparison import comparison_document, comparison_tables, read_runs
    from rlhf_runtime.telemetry.comparison_page import comparison_page
    from rlhf_runtime.telemetry.record_lines import plain_values

    runs = read_runs(run_dirs)
    if html is not None:
        write_atomically(html, comparison_page(runs).encode())
    if as_json:
        typer.echo(json.dumps(plain_values(comparison_document(runs)), indent=2))
        return
    console = page_console()
    for index, table in enumerate(comparison_tables(runs)):
        if index:
            console.print()
        console.print(table)
    if html is not None:
        typer.echo(f"wrote {html}")
