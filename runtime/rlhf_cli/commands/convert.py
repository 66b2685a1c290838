"""`rlhf convert`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from rlhf_cli.options import Filename, Manifest

BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def convert(
    file: Manifest,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="The file to write; - is standard output. Default: FILE itself; for standard "
            "input, standard output.",
        ),
    ] = None,
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
    from rlhf_api.exits import ExitCode
    from rlhf_api.reading.conversion import convert_text
    from rlhf_api.reading.manifest import decode, read_file, read_limited
    from rlhf_cli.manifest_filling import replace_file
    from rlhf_cli.manifests import STDIN

    shown = "<stdin>" if file == STDIN else str(file)
    content = read_limited(sys.stdin.buffer) if file == STDIN else read_file(file)
    text, changes = convert_text(decode(content, shown), shown)
    if check:
        for sentence in changes:
            typer.echo(f"{shown}: {sentence}")
        if changes:
            typer.echo(f"run `rlhf convert {file}`")
            raise typer.Exit(ExitCode.MANIFEST)
        typer.echo(f"{shown}: nothing to convert")
        return
    target = output or file
    if target == STDIN:
        sys.stdout.write(text)
    elif changes or target != file:
        # Decoding drops the mark; editors that wrote it expect it.
        mark = BYTE_ORDER_MARK if content.startswith(BYTE_ORDER_MARK) else b""
        replace_file(target, mark + text.encode())
    for sentence in changes or ["nothing to convert"]:
        # The manifest itself may be on standard output.
        typer.echo(f"{shown}: {sentence}", err=target == STDIN)
