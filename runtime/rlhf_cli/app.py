"""The `rlhf` command, also installed as `kubectl-rlhf`: its help, and the list of its commands."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from rlhf_cli.command_errors import guarded
from rlhf_cli.commands.cancel import cancel
from rlhf_cli.commands.chat import chat
from rlhf_cli.commands.check_downgrade import check_downgrade
from rlhf_cli.commands.compare import compare
from rlhf_cli.commands.convert import convert
from rlhf_cli.commands.describe import describe
from rlhf_cli.commands.drive import drive
from rlhf_cli.commands.evaluate import evaluate
from rlhf_cli.commands.explain import explain
from rlhf_cli.commands.export import export
from rlhf_cli.commands.fetch import fetch
from rlhf_cli.commands.fill import fill
from rlhf_cli.commands.logs import logs
from rlhf_cli.commands.plan import plan
from rlhf_cli.commands.profile import profile
from rlhf_cli.commands.replay import replay
from rlhf_cli.commands.report import report
from rlhf_cli.commands.run import run
from rlhf_cli.commands.samples import samples
from rlhf_cli.commands.standby import standby
from rlhf_cli.commands.status import status
from rlhf_cli.commands.submit import submit
from rlhf_cli.commands.suspend import resume, suspend
from rlhf_cli.commands.top import top
from rlhf_cli.commands.validate import validate

HELP = """Train language models by RLHF from one manifest, the RLHFJob.

\b
Examples:
  rlhf run job.yaml                   train on this machine
  rlhf validate job.yaml              list everything that is wrong
  rlhf explain spec.algorithm.ppo     what a field means
  rlhf plan job.yaml                  what would run where, and its memory
  rlhf fill job.yaml                  add what a cluster needs to plan it
  rlhf convert job.yaml               replace deprecated fields
  rlhf profile job.yaml               measure its models' layers on this machine
  rlhf samples rlhf-runs/job          what the model wrote
  rlhf replay rlhf-runs/job 3 12 0    a conversation with tools, turn by turn
  rlhf compare rlhf-runs/*            results of runs, and what differs
  rlhf export rlhf-runs/job out       export the model of its newest checkpoint
  rlhf chat out                       talk to a model
  rlhf evaluate out job.yaml          score a model on the job's evaluation data
  rlhf submit job.yaml --watch        train on a Kubernetes cluster
  rlhf status                         list the jobs there, with their progress
  rlhf top                            who holds GPUs there, and which of them train

\b
Exit codes: 0 done, 1 a fault of rlhf, 2 the manifest or the command line,
3 your data or code, 4 the machine or cluster (a retry may help), 130 interrupted.
"""


def version_text() -> str:
    """The versions of rlhf, its manifests and Python."""
    from importlib.metadata import version as installed_version

    from rlhf_api.api_names import API_VERSION

    python = ".".join(map(str, sys.version_info[:3]))
    return f"rlhf {installed_version('rlhf-operator')} ({API_VERSION}, Python {python})"


def version() -> None:
    """Print the versions of rlhf, its manifests and Python.

    \b
    Examples:
      rlhf version
    """
    typer.echo(version_text())


COMMANDS: tuple[Callable[..., None], ...] = (
    *(validate, explain, fill, convert, plan, profile, run, standby, report, samples, replay),
    *(compare, evaluate, chat, export),
    *(submit, status, top, describe, logs, fetch, suspend, resume, cancel, check_downgrade),
    *(drive, version),
)
"""In the order of the help."""

app = typer.Typer(
    help=HELP,
    no_args_is_help=True,
    # Its two options would only lengthen the help.
    add_completion=False,
    # Plain text: help is also read in logs, and with rich it takes longer to load.
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
# Registered here and not by decorators, so that one list shows all commands in their order.
for _command in COMMANDS:
    app.command()(guarded(_command))


def _print_version(requested: bool) -> None:
    if requested:
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
    """Options of the program itself; its help is HELP."""


def program_name(executable: str) -> str:
    """The program's name in help: `kubectl rlhf` if kubectl started it as a plugin."""
    name = Path(executable).stem
    return name.replace("-", " ", 1) if name.startswith("kubectl-") else "rlhf"


def main() -> None:
    """The entry point of both executables."""
    app(prog_name=program_name(sys.argv[0]))
