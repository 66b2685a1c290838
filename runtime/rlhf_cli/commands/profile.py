"""`rlhf profile`."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated

import typer

from rlhf_cli.options import Filename, Manifest, Overrides


def profile(
    file: Manifest,
    devices: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Ranks that compute at the same time. Default: as many as `rlhf run` would use.",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="The profile's file. Default: beside FILE."),
    ] = None,
    overrides: Overrides = None,
    _filename: Filename = False,
) -> None:
    """Measure how long a job's layers take on this machine.

    Nothing is trained, and no weights are read. It takes less than a minute for a tiny model and
    some minutes for larger ones. Run nothing else on the machine meanwhile. On CPUs ranks share
    cores, so measure with as many ranks as will run.

    \b
    Examples:
      rlhf profile job.yaml               writes job.profile.json
      rlhf profile job.yaml --devices 2   as two ranks that share the machine
      rlhf profile job.yaml -o h100.json --set spec.rollout.parallelism.tensor=2
    """
    from rlhf_cli.local_jobs import local_jobs
    from rlhf_cli.manifests import STDIN, annotate_lines, require_one_job
    from rlhf_cli.profile_file import replace_text, require_writable, summary
    from rlhf_cli.user_code import user_code
    from rlhf_planner.plan import local_pools
    from rlhf_planner.problem.devices import device_of
    from rlhf_planner.problem.profile import default_place
    from rlhf_runtime.profiling.job_subjects import job_subjects
    from rlhf_runtime.profiling.ranks import measure

    changes = overrides or []
    job = require_one_job(local_jobs(file, changes), file)
    path = output or default_place(Path("job.yaml") if file == STDIN else file)
    # Measuring takes minutes, so an unusable path is reported first.
    require_writable(path)
    with (
        annotate_lines(file, job, changes),
        user_code(job),
        tempfile.TemporaryDirectory(prefix="rlhf-profile-models-") as folder,
    ):
        pools = local_pools(job, devices)
        device = device_of(pools)
        subjects = job_subjects(job, device, Path(folder))
        ranks = sum(pool.num_devices for pool in pools)
        measured = measure(subjects, device, ranks, lambda text: typer.echo(text, err=True))
    replace_text(path, measured.to_json())
    for line in summary(measured):
        typer.echo(line)
    typer.echo(f"wrote {path}")
