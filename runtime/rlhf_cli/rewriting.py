"""Commands that rewrite a manifest: `rlhf fill` and `rlhf convert`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from rlhf_api.exits import ExitCode

BYTE_ORDER_MARK = b"\xef\xbb\xbf"

OutputFile = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        help="The file to write; - is standard output. Default: FILE itself; for standard input, "
        "standard output.",
    ),
]

Rewrite = Callable[[str, str], tuple[str, Sequence[str]]]
"""Returns the new text and a sentence for each change, from the text and its shown name."""


@dataclass(frozen=True)
class RewritingCommand:
    """Words of a command that rewrites a manifest."""

    name: str
    nothing: str
    """Said where nothing changes."""
    unwritten: str = ""
    """Added to each change that `--check` finds."""


def rewrite_manifest(
    command: RewritingCommand, file: Path, output: Path | None, check: bool, rewrite: Rewrite
) -> None:
    """Rewrite a manifest, or check whether something would change.

    Args:
        command: words of the command.
        file: to read; - is standard input.
        output: to write; - is standard output. None: `file`.
        check: True to write nothing.
        rewrite: makes the new text.

    Raises:
        Exit: something would change, with `check`.
    """
    from rlhf_api.reading.manifest import decode, read_file, read_limited
    from rlhf_cli.manifest_filling import replace_file
    from rlhf_cli.manifests import STDIN

    shown = "<stdin>" if file == STDIN else str(file)
    content = read_limited(sys.stdin.buffer) if file == STDIN else read_file(file)
    text, changes = rewrite(decode(content, shown), shown)
    if check:
        for sentence in changes:
            typer.echo(f"{shown}: {sentence}{command.unwritten}")
        if changes:
            typer.echo(f"run `rlhf {command.name} {file}`")
            raise typer.Exit(ExitCode.MANIFEST)
        typer.echo(f"{shown}: {command.nothing}")
        return
    target = output or file
    if target == STDIN:
        sys.stdout.write(text)
    # A file without changes keeps its modification time, on which tools such as make rely.
    elif changes or target != file:
        # Decoding drops the mark; editors that wrote it expect it.
        mark = BYTE_ORDER_MARK if content.startswith(BYTE_ORDER_MARK) else b""
        replace_file(target, mark + text.encode())
    for sentence in changes or [command.nothing]:
        # The manifest itself may be on standard output.
        typer.echo(f"{shown}: {sentence}", err=target == STDIN)
