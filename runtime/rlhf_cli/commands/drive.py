"""`rlhf drive`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rlhf_api.on_cluster import (
    CODE_FOLDER,
    JOB_UID_VARIABLE,
    REPORT_PORT,
    job_from_submission,
)
from rlhf_cli.options import Filename, Inject, Manifest


def _check_submission(text: str) -> str:
    try:
        job_from_submission(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    return text


def drive(
    file: Manifest,
    output: Annotated[
        Path,
        typer.Option("--output", "-o", help="The run's folder; workers must see it, too."),
    ],
    submission_id: Annotated[
        str,
        typer.Option(
            help="This start in Ray's Jobs API: JOB-ATTEMPT-RESTART.", callback=_check_submission
        ),
    ],
    report_port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port of the report; 0: any free port.")
    ] = REPORT_PORT,
    ray_address: Annotated[
        str, typer.Option(envvar="RAY_ADDRESS", help="The Ray cluster; auto: the surrounding one.")
    ] = "auto",
    code: Annotated[
        Path, typer.Option(help="Mount point of spec.code in every pod of the cluster.")
    ] = Path(CODE_FOLDER),
    job_uid: Annotated[
        str | None,
        typer.Option(envvar=JOB_UID_VARIABLE, help="Uid of the RLHFJob, from the operator."),
    ] = None,
    inject: Inject = None,
    _filename: Filename = False,
) -> None:
    """Train in a Ray cluster; the operator starts this command.

    \b
    Examples:
      rlhf drive job.yaml --output /rlhf/run --submission-id sort-grpo-1-0
    """
    from rlhf_cli.driver import DriverStart, drive_job

    faults = tuple(inject or ())
    drive_job(
        DriverStart(
            file, output, submission_id, report_port, ray_address, code, job_uid, inject=faults
        )
    )
