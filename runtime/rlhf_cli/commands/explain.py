"""`rlhf explain`."""

from __future__ import annotations

from typing import Annotated

import typer


def explain(
    path: Annotated[
        str, typer.Argument(metavar="[PATH]", help="A field. Default: the manifest as a whole.")
    ] = "",
    recursive: Annotated[
        bool, typer.Option("--recursive", "-r", help="List all fields below it.")
    ] = False,
) -> None:
    """Explain a field of the manifest.

    It shows meaning, type, allowed values and default.

    \b
    Examples:
      rlhf explain
      rlhf explain spec.algorithm.ppo
      rlhf explain spec.models.actor.source
      rlhf explain spec --recursive
    """
    from rlhf_api.reading.explain import explain as explain_field

    typer.echo(explain_field(path, recursive=recursive), nl=False)
