"""`rlhf convert`."""

from __future__ import annotations

from typing import Annotated

import typer

from rlhf_cli.options import Filename, Manifest
from rlhf_cli.rewriting import OutputFile, RewritingCommand, rewrite_manifest

CONVERT = RewritingCommand("convert", "nothing to convert")


def convert(
    file: Manifest,
    output: OutputFile = None,
    check: Annotated[
        bool,
        typer.Option("--check", help="Write nothing; exit with 2 if something would change."),
    ] = False,
    _filename: Filename = False,
) -> None:
    """Rewrite a manifest without deprecated fields.

    Manifests of earlier releases stay valid; `rlhf validate` and the job's condition Accepted name
    their deprecated fields. Comments, order and other objects of the file stay as they are.

    \b
    Examples:
      rlhf convert job.yaml                in the file itself
      rlhf convert job.yaml -o new.yaml    into another one
      rlhf convert --check job.yaml        exits with 2 if it has deprecated fields
      kubectl get rlhfjob sort -o yaml | rlhf convert -
    """
    from rlhf_api.reading.conversion import convert_text

    rewrite_manifest(CONVERT, file, output, check, convert_text)
