"""The user's own functions: found by their entry points, and what they raise is told as theirs."""

from __future__ import annotations

import importlib
import traceback
from collections.abc import Callable
from typing import Any, TypeVar

from rlhf_runtime.errors import UserCodeFailed

T = TypeVar("T")


def load(what: str, entrypoint: str) -> Any:
    """What an entry point names.

    Args:
        what: it is, for messages.
        entrypoint: `package.module:name`.

    Raises:
        UserCodeFailed: the module cannot be imported, or has no such name.
    """
    module, _, name = entrypoint.partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except Exception as error:
        raise UserCodeFailed(
            f"{what} {entrypoint} cannot be imported: got {type(error).__name__}: {error}; correct "
            f"it\n{traceback.format_exc()}"
        ) from None


def call(named: str, function: Callable[..., T], *arguments: Any, **parameters: Any) -> T:
    """What a function returns.

    Args:
        named: the function, for messages.
        function: the user's.
        arguments: its own.
        parameters: its own.

    Raises:
        UserCodeFailed: it raises; the message has its traceback.
    """
    try:
        return function(*arguments, **parameters)
    except Exception as error:  # whatever the user's code raises is the user's to read
        raised = error.__traceback__.tb_next if error.__traceback__ else None
        text = "".join(traceback.format_exception(type(error), error, raised))
        raise UserCodeFailed(
            f"{named} raised {type(error).__name__}: {error}; correct it\n{text}"
        ) from None
