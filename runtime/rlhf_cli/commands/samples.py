"""`rlhf samples`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def samples(
    run_dir: Annotated[Path, typer.Argument(metavar="FOLDER", help="The folder of a run.")],
    step: Annotated[
        int | None,
        typer.Option(min=0, help="A training step; with --evaluation the one after this step."),
    ] = None,
    evaluation: Annotated[
        bool, typer.Option("--evaluation", help="Responses of evaluations, not of training.")
    ] = False,
    best: Annotated[
        bool, typer.Option("--best", help="Those with the highest score first.")
    ] = False,
    worst: Annotated[
        bool, typer.Option("--worst", help="Those with the lowest score first.")
    ] = False,
    prompt: Annotated[
        int | None,
        typer.Option(
            metavar="ID", help="Responses to this prompt; without --step of all evaluations."
        ),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="Maximum number of responses.")] = 10,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
) -> None:
    """Show prompts and responses of a run, finished or not.

    Without options those of the last evaluation, or of the last step if none has samples. The run's
    folder has some of each evaluation and of every tenth step (telemetry.samplesEverySteps).

    \b
    Examples:
      rlhf samples rlhf-runs/sort-grpo
      rlhf samples rlhf-runs/sort-grpo --worst --limit 3
      rlhf samples rlhf-runs/sort-grpo --step 100 --best
      rlhf samples rlhf-runs/sort-grpo --evaluation --step 0
      rlhf samples rlhf-runs/sort-grpo --prompt 12 --json
    """
    import dataclasses
    import json

    from rich.console import Console

    from rlhf_cli.run_samples import Order, SampleQuery, blocks, find_samples
    from rlhf_runtime.telemetry.run_folder import RunFolder

    if best and worst:
        raise typer.BadParameter("--best and --worst exclude each other: give one of them")
    order = Order.BEST if best else Order.WORST if worst else Order.WRITTEN
    query = SampleQuery(step, evaluation, prompt, order, limit)
    selected = find_samples(RunFolder(run_dir), query)
    if as_json:
        typer.echo(json.dumps([dataclasses.asdict(sample) for sample in selected], indent=2))
        return
    console = Console(highlight=False, soft_wrap=True)
    for block in blocks(selected):
        console.print(block)
