"""`rlhf run`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rlhf_cli.options import Devices, Filename, Inject, Manifest, Overrides


def run(
    file: Manifest,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="The run's folder. Default: ./rlhf-runs/NAME."),
    ] = None,
    devices: Devices = None,
    steps: Annotated[
        int | None,
        typer.Option(min=1, help="Number of steps, as --set spec.schedule.steps."),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, help="The job's seed, as --set spec.schedule.seed.")
    ] = None,
    overrides: Overrides = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Start over; an earlier run's folder is kept aside.")
    ] = False,
    inject: Inject = None,
    _filename: Filename = False,
) -> None:
    """Train on this machine. An earlier run in the folder resumes from its newest checkpoint.

    \b
    Examples:
      rlhf run job.yaml
      rlhf run job.yaml --steps 3 --output /tmp/try
      rlhf run job.yaml --set spec.rollout.temperature=0.8 --fresh
      rlhf run job.yaml --inject kill:rank=0,phase=train,step=3
    """
    from rlhf_cli.local_run import run_job

    run_job(file, output, devices, steps, seed, overrides or [], fresh, inject or [])
