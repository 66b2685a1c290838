"""How a command ends: every error becomes a sentence on stderr and an exit code."""

from __future__ import annotations

import functools
import traceback
from collections.abc import Callable
from typing import ParamSpec

import typer

from rlhf_api.errors import ManifestError, RlhfError
from rlhf_api.exits import ExitCode

Parameters = ParamSpec("Parameters")


def guarded(command: Callable[Parameters, None]) -> Callable[Parameters, None]:
    """Wrap a command so that it ends with a sentence and an exit code, whatever it raises."""

    @functools.wraps(command)
    def wrapper(*args: Parameters.args, **kwargs: Parameters.kwargs) -> None:
        try:
            command(*args, **kwargs)
        except RlhfError as error:
            typer.echo(describe(error), err=True)
            raise typer.Exit(error.exit_code) from error
        except KeyboardInterrupt:
            typer.echo("interrupted", err=True)
            raise typer.Exit(ExitCode.INTERRUPTED) from None
        except (typer.Exit, typer.Abort, typer.BadParameter, BrokenPipeError):
            raise
        except Exception as error:
            typer.echo(traceback.format_exc(), err=True)
            typer.echo(
                f"This is a fault of rlhf, not of your manifest: {type(error).__name__}: {error}. "
                "Please report it with the lines above.",
                err=True,
            )
            raise typer.Exit(ExitCode.BUG) from error

    return wrapper


def describe(error: RlhfError) -> str:
    """An error's reason and text; for a manifest every problem on a line of its own."""
    if isinstance(error, ManifestError):
        count = len(error.problems)
        return f"{error}\n{error.reason}: {count} problem{'s' if count != 1 else ''}"
    return f"{error.reason}: {error}"
