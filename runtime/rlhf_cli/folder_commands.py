"""The command's readers of what a run has left on this machine: their options and their help.

Bodies are imported when they run.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from rlhf_cli.guard import guarded

folder_app = typer.Typer(rich_markup_mode=None)


@folder_app.command()
@guarded
def report(
    run_dir: Annotated[Path, typer.Argument(metavar="FOLDER", help="The folder of a run.")],
) -> None:
    """Summarize a run and write its report.html anew.

    \b
    Examples:
      rlhf report rlhf-runs/sort-grpo
    """
    from rlhf_cli.report import report_command

    report_command(run_dir)


class ExportDtype(StrEnum):
    """Number formats of exported weights."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"


@folder_app.command()
@guarded
def export(
    checkpoint: Annotated[
        str,
        typer.Argument(
            metavar="CHECKPOINT",
            help="The folder or address of a step's checkpoint; or of a run, of which the newest "
            "complete one is taken.",
        ),
    ],
    output: Annotated[
        str, typer.Argument(metavar="OUT", help="The folder that becomes the model.")
    ],
    role: Annotated[
        str | None, typer.Option(help="Whose model. Default: the one that the run leaves.")
    ] = None,
    dtype: Annotated[
        ExportDtype | None,
        typer.Option(help="Of the weights. Default: as the run leaves its model."),
    ] = None,
    source: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Has config and tokenizer of the model that the role was trained from. Default: "
            "what the checkpoint's manifest names.",
        ),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Replace what lies there already.")
    ] = False,
) -> None:
    """Make a model in Hugging Face format of a checkpoint, also while the run goes on.

    It starts neither Ray nor ranks, and holds one file of weights (5 GiB) at a time. Every byte of
    the checkpoint is checked before. A critic or a reward model becomes a sequence classifier of
    one label.

    \b
    Examples:
      rlhf export rlhf-runs/sort-grpo /tmp/model
      rlhf export rlhf-runs/sort-ppo/checkpoints/step-00000050 /tmp/critic --role critic
      rlhf export s3://bucket/sort /tmp/model --dtype bfloat16
    """
    from rlhf_cli.export import Export, export_command

    asked = None if dtype is None else dtype.value
    export_command(Export(checkpoint, output, role, asked, source, force))
