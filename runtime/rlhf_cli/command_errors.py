"""Turn every error of a command into a message on stderr and an exit code."""

from __future__ import annotations

import functools
import traceback
from collections.abc import Callable
from typing import ParamSpec

import typer

from rlhf_api.errors import ManifestError, RlhfError, SeveralErrors
from rlhf_api.exits import ExitCode

Parameters = ParamSpec("Parameters")


def guarded(command: Callable[Parameters, None]) -> Callable[Parameters, None]:
    """Wrap a command so that any error becomes a message and an exit code."""

    @functools.wraps(command)
    def wrapper(*args: Parameters.args, **kwargs: Parameters.kwargs) -> None:
        try:
            command(*args, **kwargs)
        # Typer handles these itself.
        except (typer.Exit, typer.Abort, typer.BadParameter, BrokenPipeError):
            raise
        except (Exception, KeyboardInterrupt) as error:
            cause = error if isinstance(error, Exception) else None
            raise typer.Exit(print_error(error)) from cause

    return wrapper


def print_error(error: BaseException) -> ExitCode:
    """Print an error on stderr; return its exit code."""
    if isinstance(error, RlhfError):
        typer.echo(error_text(error), err=True)
        return error.exit_code
    if isinstance(error, KeyboardInterrupt):
        typer.echo("\n".join(["interrupted", *map(str, error.args)]), err=True)
        return ExitCode.INTERRUPTED
    # Only an unexpected error prints its traceback: for all others the message is enough.
    typer.echo("".join(traceback.format_exception(error)), err=True)
    typer.echo(
        f"This is a fault of rlhf, not of your manifest: {type(error).__name__}: {error}. "
        "Please report it with the lines above.",
        err=True,
    )
    return ExitCode.BUG


def error_text(error: RlhfError) -> str:
    """Reason and text of an error; several problems stand on a line each."""
    if isinstance(error, SeveralErrors):
        return f"{error}\n{error.reason}: {len(error.errors)} problems"
    if isinstance(error, ManifestError):
        count = len(error.problems)
        return f"{error}\n{error.reason}: {count} problem{'s' if count != 1 else ''}"
    return f"{error.reason}: {error.positioned}"
