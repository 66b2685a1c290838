"""The lines of a conversation in a terminal, or from a file."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

import typer

from rlhf_cli.chat_model import ChatRequest, open_model
from rlhf_runtime.data.row_checks import RowProblem

NEW = "/new"
QUIT = "/quit"


def run_chat(request: ChatRequest) -> None:
    """Open the model and answer the lines of standard input."""
    with open_model(request) as model:
        from rlhf_cli.chat import Conversation  # imports torch and transformers

        conversation = Conversation(model, request.seed)
        is_terminal = sys.stdin.isatty()
        if not conversation.has_template:
            typer.echo("the model has no chat template: each line stands alone", err=True)
        if is_terminal:
            typer.echo(f"{NEW} begins another conversation, {QUIT} ends", err=True)
        answer_lines(conversation, read_lines(is_terminal), lambda text: typer.echo(text, nl=False))


class Answering(Protocol):
    """A model that answers prompts."""

    def answer(self, text: str, write: Callable[[str], None]) -> str:
        """Answer a prompt; `write` takes the parts of the answer."""

    def forget(self) -> None:
        """Begin another conversation."""


def read_lines(is_terminal: bool) -> Iterator[str]:
    """Yield the user's lines.

    Args:
        is_terminal: True: ask for each line.
    """
    while True:
        try:
            line = input("> ") if is_terminal else next(sys.stdin)
        except (EOFError, StopIteration):
            return
        except KeyboardInterrupt:
            typer.echo()  # Ctrl-C at an empty prompt ends nothing
            continue
        yield line.rstrip("\n")


def answer_lines(model: Answering, lines: Iterable[str], write: Callable[[str], None]) -> None:
    """Answer each line; commands begin with a slash.

    Args:
        model: answers.
        lines: of the user.
        write: prints a part of an answer.
    """
    for line in lines:
        text = line.strip()
        if text == QUIT:
            return
        if text == NEW:
            model.forget()
            continue
        if not text:
            continue
        if text.startswith("/") and len(text.split()) == 1:
            typer.echo(f"no such command: got {text}, allowed {NEW} and {QUIT}", err=True)
            continue
        try:
            model.answer(line, write)
        except KeyboardInterrupt:
            pass  # the answer ends here
        except RowProblem as error:
            typer.echo(f"{error}; write another message, or {NEW}", err=True)
            continue
        write("\n")
