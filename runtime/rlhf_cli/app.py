"""The `rlhf` command, also installed as `kubectl-rlhf`: its commands, their options and their help.

Bodies are imported when they run, so that `rlhf validate` starts without torch, ray or the planner.
"""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from rlhf_api.on_cluster import CODE_FOLDER, REPORT_PORT, job_from_submission
from rlhf_cli.cluster_commands import cluster_app
from rlhf_cli.folder_commands import folder_app
from rlhf_cli.guard import guarded
from rlhf_cli.manifest_commands import manifest_app
from rlhf_cli.options import Filename, Manifest, Overrides
from rlhf_cli.reading_commands import reading_app

HELP = """Train language models by RLHF from one manifest, the RLHFJob.

\b
Examples:
  rlhf run job.yaml                   train on this machine
  rlhf validate job.yaml              list everything that is wrong
  rlhf explain spec.algorithm.ppo     what a field means
  rlhf plan job.yaml                  what would run where, and its memory
  rlhf fill job.yaml                  what a cluster needs to plan it
  rlhf profile job.yaml               how long its models' layers take here
  rlhf export rlhf-runs/job out       the model of its newest checkpoint
  rlhf submit job.yaml --watch        train on a Kubernetes cluster
  rlhf status                         the jobs there, and how far they are

\b
Exit codes: 0 done, 1 a fault of rlhf, 2 the manifest or the command line,
3 your data or code, 4 the machine (again may help), 130 interrupted.
"""

app = typer.Typer(
    help=HELP,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Devices = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=64,  # as many as a node of resources.nodePools
        help="Devices of this machine. Default: all GPUs, or one CPU rank without any; for `plan` "
        "the manifest's nodePools if there are any.",
    ),
]


class PlanOutput(StrEnum):
    """The forms of a printed plan."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"
    GRAPH = "graph"
    MERMAID = "mermaid"


@app.command()
@guarded
def plan(
    file: Manifest,
    devices: Devices = None,
    output: Annotated[
        PlanOutput, typer.Option("--output", "-o", help="Form of the plan.")
    ] = PlanOutput.TABLE,
    html: Annotated[
        Path | None, typer.Option("--html", help="Also write a page with the timeline.")
    ] = None,
    prove: Annotated[
        bool, typer.Option("--prove", help="Search on until no faster plan is possible.")
    ] = False,
    profile: Annotated[
        Path | None, typer.Option("--profile", help="What `rlhf profile` measured.")
    ] = None,
    explain: Annotated[
        str | None, typer.Option("--explain", help="Say more about a call, such as actor.train.")
    ] = None,
    diff: Annotated[
        Path | None, typer.Option("--diff", help="Compare with a plan that -o json printed.")
    ] = None,
    overrides: Overrides = None,
    _filename: Filename = False,
) -> None:
    """Show what a job would run where, whether its memory suffices, and how long steps may take.

    \b
    Examples:
      rlhf plan job.yaml
      rlhf plan job.yaml --devices 2
      rlhf plan job.yaml --set spec.rollout.samplesPerPrompt=16
      rlhf plan job.yaml -o json
      rlhf plan job.yaml -o graph
      rlhf plan job.yaml --html plan.html
      rlhf plan job.yaml --prove
      rlhf plan job.yaml --profile job.profile.json
      rlhf plan job.yaml --explain actor.train
      rlhf plan job.yaml -o json > before.json; rlhf plan job.yaml --diff before.json
    """
    from rlhf_cli.plan import plan_command

    plan_command(file, devices, output.value, overrides or [], html, prove, profile, explain, diff)


@app.command()
@guarded
def profile(
    file: Manifest,
    devices: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Ranks that compute at the same time. Default: as many as `rlhf run` would take.",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="The profile's file. Default: beside FILE."),
    ] = None,
    overrides: Overrides = None,
    _filename: Filename = False,
) -> None:
    """Measure how long the layers of a job's models take on this machine.

    Nothing is trained, and no weights are read. It takes less than a minute for a tiny model and
    some minutes for larger ones; let the machine do nothing else meanwhile. On CPUs ranks share
    cores, so measure with as many as will run.

    \b
    Examples:
      rlhf profile job.yaml               writes job.profile.json
      rlhf profile job.yaml --devices 2   as two ranks that share the machine
      rlhf profile job.yaml -o h100.json --set spec.rollout.parallelism.tensor=2
    """
    from rlhf_cli.profile import profile_command

    profile_command(file, devices, output, overrides or [])


@app.command()
@guarded
def run(
    file: Manifest,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="The run's folder. Default: ./rlhf-runs/NAME."),
    ] = None,
    devices: Devices = None,
    steps: Annotated[
        int | None, typer.Option(min=1, help="Train so many steps; as --set spec.schedule.steps.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, help="The job's seed; as --set spec.schedule.seed.")
    ] = None,
    overrides: Overrides = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Start over; an earlier run's folder is kept aside.")
    ] = False,
    inject: Annotated[
        list[str] | None,
        typer.Option(
            "--inject",
            metavar="FAULT",
            help="Let something fail on purpose; may be given several times.",
        ),
    ] = None,
    _filename: Filename = False,
) -> None:
    """Train on this machine. An earlier run in the folder goes on from its newest checkpoint.

    \b
    Examples:
      rlhf run job.yaml
      rlhf run job.yaml --steps 3 --output /tmp/try
      rlhf run job.yaml --set spec.rollout.temperature=0.8 --fresh
      rlhf run job.yaml --inject kill:rank=0,phase=train,step=3
    """
    from rlhf_cli.run import run_command

    run_command(file, output, devices, steps, seed, overrides or [], fresh, inject or [])


@app.command()
@guarded
def standby() -> None:
    """Keep libraries in memory between runs: their workers import nothing, until Ctrl-C.

    Runs find it by themselves, several at a time, and say so. They must have the code, packages,
    limits and priority that this command was started with, and the same variables of those that
    libraries read (such as LANG, TZ, HOME, OMP_*, CUDA_*, HF_*, VLLM_*); else they say what
    differs. It takes about 700 MiB and no device.

    \b
    Examples:
      rlhf standby                        in one terminal
      rlhf run job.yaml                   in another, as ever
    """
    from rlhf_cli.standby import standby_command

    standby_command()


def _known_submission(text: str) -> str:
    try:
        job_from_submission(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    return text


@app.command()
@guarded
def drive(
    file: Manifest,
    output: Annotated[
        Path,
        typer.Option("--output", "-o", help="The run's folder, which workers see, too."),
    ],
    submission_id: Annotated[
        str,
        typer.Option(
            help="This start in Ray's Jobs API: JOB-ATTEMPT-RESTART.", callback=_known_submission
        ),
    ],
    report_port: Annotated[
        int, typer.Option(min=0, max=65535, help="Serves the report; 0: any that is free.")
    ] = REPORT_PORT,
    ray_address: Annotated[
        str, typer.Option(envvar="RAY_ADDRESS", help="The Ray cluster; auto: the one around us.")
    ] = "auto",
    code: Annotated[
        Path, typer.Option(help="Where spec.code is mounted, in every pod of the cluster.")
    ] = Path(CODE_FOLDER),
    inject: Annotated[
        list[str] | None,
        typer.Option(
            "--inject",
            metavar="FAULT",
            help="Let something fail on purpose; may be given several times.",
        ),
    ] = None,
    _filename: Filename = False,
) -> None:
    """Train in the Ray cluster around us; the operator starts this on a job's head.

    \b
    Examples:
      rlhf drive job.yaml --output /rlhf/run --submission-id sort-grpo-1-0
    """
    from rlhf_cli.drive import DriverStart, drive_command

    faults = tuple(inject or ())
    drive_command(DriverStart(file, output, submission_id, report_port, ray_address, code, faults))


app.add_typer(manifest_app)
app.add_typer(folder_app)
app.add_typer(cluster_app)
app.add_typer(reading_app)


def version_text() -> str:
    """The versions of rlhf, of the manifests it reads, and of Python."""
    from importlib.metadata import version as installed

    from rlhf_api.spec.job import API_VERSION

    python = ".".join(map(str, sys.version_info[:3]))
    return f"rlhf {installed('rlhf-operator')} ({API_VERSION}, Python {python})"


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(version_text())
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version.", is_eager=True, callback=_print_version
        ),
    ] = False,
) -> None:
    """Options of the program itself; its help is the application's."""


@app.command()
@guarded
def version() -> None:
    """Print the versions of rlhf, of the manifests it reads, and of Python.

    \b
    Examples:
      rlhf version
    """
    typer.echo(version_text())


def program_name(executable: str) -> str:
    """How help should call the program: `kubectl rlhf` when kubectl started it as a plugin."""
    name = Path(executable).stem
    return name.replace("-", " ", 1) if name.startswith("kubectl-") else "rlhf"


def main() -> None:
    """The entry point of both executables."""
    app(prog_name=program_name(sys.argv[0]))
