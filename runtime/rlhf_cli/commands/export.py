"""`rlhf export`."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class ExportDtype(StrEnum):
    """Number formats of exported weights."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"


def export(
    checkpoint: Annotated[
        str,
        typer.Argument(
            metavar="CHECKPOINT",
            help="Folder or address of a step's checkpoint, or of a run: then its newest complete "
            "one.",
        ),
    ],
    output: Annotated[str, typer.Argument(metavar="OUT", help="The folder of the model.")],
    role: Annotated[
        str | None, typer.Option(help="The role to export. Default: the one that the run exports.")
    ] = None,
    dtype: Annotated[
        ExportDtype | None,
        typer.Option(help="Number format of the weights. Default: checkpoint.modelFormat."),
    ] = None,
    source: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Folder with config and tokenizer of the model that the role was trained from. "
            "Default: the source that the checkpoint's manifest names.",
        ),
    ] = None,
    best: Annotated[
        bool,
        typer.Option(
            "--best",
            help="Of a run: the checkpoint with the largest value of checkpoint.keepBest, instead "
            "of the newest.",
        ),
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace existing files in OUT.")] = False,
) -> None:
    """Export a checkpoint as a model in Hugging Face format.

    This also works while the run is active. It starts neither Ray nor ranks, and needs memory for
    one file of weights (5 GiB). Every byte of the checkpoint is verified first. A critic or a
    reward model becomes a sequence classifier of one label.

    \b
    Examples:
      rlhf export rlhf-runs/sort-grpo /tmp/model
      rlhf export rlhf-runs/sort-grpo /tmp/best --best
      rlhf export rlhf-runs/sort-ppo/checkpoints/step-00000050 /tmp/critic --role critic
      rlhf export s3://bucket/sort /tmp/model --dtype bfloat16
    """
    from rlhf_cli.export import ExportRequest, export_checkpoint

    number_format = None if dtype is None else dtype.value
    export_checkpoint(ExportRequest(checkpoint, output, role, number_format, source, force, best))
