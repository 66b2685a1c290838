"""`rlhf fill`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from rlhf_cli.options import Filename, Manifest

BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def fill(
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
    from rlhf_api.exits import ExitCode
    from rlhf_api.reading.manifest import decode, read_file, read_limited
    from rlhf_cli.manifest_filling import fill_text, replace_file
    from rlhf_cli.manifests import STDIN

    shown = "<stdin>" if file == STDIN else str(file)
    content = read_limited(sys.stdin.buffer) if file == STDIN else read_file(file)
    filled = fill_text(decode(content, shown), shown, file)
    if check:
        for sentence in filled.changes:
            typer.echo(f"{shown}: {sentence}: missing or out of date")
        if filled.changes:
            typer.echo(f"run `rlhf fill {file}`")
            raise typer.Exit(ExitCode.MANIFEST)
        typer.echo(f"{shown}: nothing to fill in")
        return
    target = output or file
    if target == STDIN:
        sys.stdout.write(filled.text)
    # A file without changes keeps its modification time, on which tools such as make rely.
    elif filled.changes or target != file:
        # Decoding drops the mark; editors that wrote it expect it.
        mark = BYTE_ORDER_MARK if content.startswith(BYTE_ORDER_MARK) else b""
        replace_file(target, mark + filled.text.encode())
    for sentence in filled.changes or ["nothing to fill in"]:
        # The manifest itself may be on standard output.
        typer.echo(f"{shown}: {sentence}", err=target == STDIN)
