"""The commands for manifests themselves: check them, explain them, fill in what they lack.

Bodies are imported when they run.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rlhf_cli.guard import guarded
from rlhf_cli.options import Filename, Manifest, Overrides

manifest_app = typer.Typer(rich_markup_mode=None)


@manifest_app.command()
@guarded
def validate(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE...", help="Manifests; - is standard input.")
    ],
    overrides: Overrides = None,
    deep: Annotated[
        bool,
        typer.Option(
            "--deep",
            help="Check also data, models, verifiers, code and plan: all that a run checks before "
            "it starts, and every row.",
        ),
    ] = False,
    _filename: Filename = False,
) -> None:
    """List everything that is wrong with manifests, with line, reason and remedy.

    \b
    Examples:
      rlhf validate job.yaml
      rlhf validate --deep job.yaml
      rlhf validate examples/*.yaml
      rlhf validate job.yaml --set spec.schedule.steps=300
      helm template . | rlhf validate -
    """
    from rlhf_cli.validate import validate_command

    validate_command(files, overrides or [], deep)


@manifest_app.command()
@guarded
def explain(
    path: Annotated[
        str, typer.Argument(metavar="[PATH]", help="A field; without it the whole manifest.")
    ] = "",
    recursive: Annotated[
        bool, typer.Option("--recursive", "-r", help="List the whole tree below the field.")
    ] = False,
) -> None:
    """Explain a field of the manifest: meaning, type, allowed values, default.

    \b
    Examples:
      rlhf explain
      rlhf explain spec.algorithm.ppo
      rlhf explain spec.models.actor.source
      rlhf explain spec --recursive
    """
    from rlhf_api.reading.explain import explain as explanation

    typer.echo(explanation(path, recursive=recursive), nl=False)


@manifest_app.command()
@guarded
def fill(
    file: Manifest,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="The file to write; - is standard output. Default: FILE itself, of standard "
            "input standard output.",
        ),
    ] = None,
    check: Annotated[
        bool,
        typer.Option("--check", help="Write nothing; exit with 2 if something would be filled in."),
    ] = False,
    _filename: Filename = False,
) -> None:
    """Write into a manifest what a cluster needs to plan it: shapes of models, graph of your step.

    The operator runs no code of yours and opens no model. With the dimensions of models that no
    table has (models.*.shape) and the calls of a custom algorithm's step (algorithm.graph) it
    plans, and refuses what cannot fit, before it asks for a GPU. Run it where code and models are,
    and again when they have changed: a driver refuses a manifest that says something else than
    they do. Comments, order and other objects of the file stay as they are.

    \b
    Examples:
      rlhf fill job.yaml                   into the file itself
      rlhf fill job.yaml -o filled.yaml    into another one
      rlhf fill job.yaml -o - | kubectl apply -f -
      rlhf fill --check job.yaml           exits with 2 where it is not up to date
      helm template . | rlhf fill - > all.yaml
    """
    from rlhf_cli.fill import fill_command

    fill_command(file, output, check)
