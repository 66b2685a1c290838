"""`rlhf fill`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from rlhf_cli.options import Filename, Manifest
from rlhf_cli.rewriting import OutputFile, RewritingCommand, rewrite_manifest

FILL = RewritingCommand("fill", "nothing to fill in", unwritten=": missing or out of date")


def fill(
    file: Manifest,
    output: OutputFile = None,
    check: Annotated[
        bool,
        typer.Option("--check", help="Write nothing; exit with 2 if something would be filled in."),
    ] = False,
    _filename: Filename = False,
) -> None:
    """Add to a manifest what a cluster needs to plan it.

    The operator runs no code of yours and opens no model. It plans with the dimensions of models
    that no table has (models.*.shape) and the calls of a custom algorithm's step
    (algorithm.graph), and refuses what cannot fit before it asks for a GPU. Run this command where
    code and models are, and again when they have changed: a driver refuses a manifest that does
    not match them. Comments, order and other objects of the file stay as they are.

    \b
    Examples:
      rlhf fill job.yaml                   into the file itself
      rlhf fill job.yaml -o filled.yaml    into another one
      rlhf fill job.yaml -o - | kubectl apply -f -
      rlhf fill --check job.yaml           exits with 2 where it is not up to date
      helm template . | rlhf fill - > all.yaml
    """
    from rlhf_cli.manifest_filling import fill_text

    def filled(text: str, shown: str) -> tuple[str, Sequence[str]]:
        made = fill_text(text, shown, file)
        return made.text, made.changes

    rewrite_manifest(FILL, file, output, check, filled)
