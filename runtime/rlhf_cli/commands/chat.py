"""`rlhf chat`."""

from __future__ import annotations

from typing import Annotated

import typer


def chat(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="A run, a step's checkpoint, a model's folder, or an id on the Hugging Face hub.",
        ),
    ],
    best: Annotated[
        bool, typer.Option("--best", help="Of a run: its best checkpoint, by checkpoint.keepBest.")
    ] = False,
    temperature: Annotated[
        float | None,
        typer.Option(min=0, max=2, help="0 is greedy. Default: the job's, else 1."),
    ] = None,
    max_tokens: Annotated[
        int | None,
        typer.Option(min=1, help="Limit of an answer. Default: the job's, else 512."),
    ] = None,
    system: Annotated[
        str | None, typer.Option(metavar="TEXT", help="System prompt. Default: the job's.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Makes sampled answers repeatable.")
    ] = None,
) -> None:
    """Talk to a model, with the prompts and the sampling of its job.

    Each line is a message of the user. `/new` begins another conversation, `/quit` or Ctrl-D ends;
    Ctrl-C ends an answer. If standard input is no terminal, the answers to its lines are printed.
    A model without a chat template continues each line by itself.

    \b
    Examples:
      rlhf chat rlhf-runs/sums-grpo
      rlhf chat rlhf-runs/sums-grpo --best --temperature 0
      rlhf chat Qwen/Qwen3-0.6B --system "Answer in one word."
      rlhf chat rlhf-runs/sort-grpo --temperature 0 < prompts.txt
    """
    from rlhf_cli.chat_model import ChatRequest
    from rlhf_cli.chat_session import run_chat

    run_chat(ChatRequest(model, best, temperature, max_tokens, system, seed))
