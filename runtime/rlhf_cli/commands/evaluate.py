"""`rlhf evaluate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rlhf_cli.options import Devices, Filename, Manifest, Overrides


def evaluate(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="A folder in Hugging Face format, the folder of a finished run, or an id on the "
            "Hugging Face hub, also as ID@REVISION.",
        ),
    ],
    file: Manifest,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="Folder of records and logs. Default: ./rlhf-runs/NAME-evaluation.",
        ),
    ] = None,
    devices: Devices = None,
    step: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Sample responses as the evaluation after this step of a run; no effect on greedy "
            "ones. Default: the step of MODEL in the run that it belongs to, else 0.",
        ),
    ] = None,
    overrides: Overrides = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    _filename: Filename = False,
) -> None:
    """Evaluate a model on a manifest's evaluation data, without training.

    MODEL takes the place of the model that the manifest trains. It answers the prompts of
    data.evaluation, and the manifest's rewards score the answers, as in an evaluation of `rlhf
    run`; so the model of a run gets the numbers of the evaluation after its step. Only the roles of
    evaluation start: no optimizer, no critic, no reference.

    \b
    Examples:
      rlhf evaluate rlhf-runs/sort-grpo job.yaml
      rlhf evaluate /models/mine job.yaml --json
      rlhf evaluate Qwen/Qwen2.5-0.5B job.yaml --set spec.data.evaluation.samplesPerPrompt=8
    """
    from rlhf_cli.evaluation import EvaluationRequest, evaluate_model

    evaluate_model(
        EvaluationRequest(model, file, output, devices, step, tuple(overrides or ()), as_json)
    )
