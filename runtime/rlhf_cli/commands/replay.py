"""`rlhf replay`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def replay(
    run_dir: Annotated[Path, typer.Argument(metavar="FOLDER", help="The folder of a run.")],
    step: Annotated[
        int,
        typer.Argument(
            metavar="STEP",
            min=0,
            help="A training step; with --evaluation the one after this step.",
        ),
    ],
    prompt: Annotated[
        int, typer.Argument(metavar="PROMPT", help="Id of its prompt, as rlhf samples shows it.")
    ],
    sample: Annotated[
        int,
        typer.Argument(
            metavar="SAMPLE", min=0, help="Number of the response to the prompt, from 0."
        ),
    ] = 0,
    evaluation: Annotated[
        bool, typer.Option("--evaluation", help="A conversation of an evaluation.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
) -> None:
    """Show a conversation with tools again, as the journal of a run has it.

    Turn by turn: what the model wrote, the calls and their answers, errors, rewards of turns and of
    the end, limits that fired. No tool is called. The journal has the steps since the oldest
    checkpoint; of earlier ones the samples have some conversations, shortened.

    \b
    Examples:
      rlhf replay rlhf-runs/calculator 3 12 0
      rlhf replay rlhf-runs/calculator 3 12 1 --json
      rlhf replay rlhf-runs/calculator 20 7 0 --evaluation
    """
    import json

    from rich.console import Console

    from rlhf_cli.replayed import ReplayQuery, blocks, find_conversations
    from rlhf_runtime.telemetry.run_folder import RunFolder

    query = ReplayQuery(step, prompt, sample, evaluation)
    conversations = find_conversations(RunFolder(run_dir), query)
    if as_json:
        typer.echo(json.dumps([one.to_json(query) for one in conversations], indent=2))
        return
    console = Console(highlight=False, soft_wrap=True)
    for block in blocks(conversations, query):
        console.print(block)
