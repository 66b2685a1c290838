"""Arguments and options that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Manifest = Annotated[
    Path, typer.Argument(metavar="FILE", help="The manifest; - is standard input.")
]
Filename = Annotated[bool, typer.Option("-f", help="May stand before FILE, as for kubectl.")]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="PATH=VALUE",
        help="Change a field before the manifest is checked; may be given several times.",
    ),
]
