"""Imports and calls the user's functions; their exceptions become UserCodeFailed."""

from __future__ import annotations

import importlib
import traceback
from collections.abc import Callable
from typing import Any, TypeVar

from rlhf_runtime.errors import UserCodeFailed

T = TypeVar("T")


def load(label: str, entrypoint: str) -> Any:
    """Import the object of an entry point.

    Args:
        label: of the object, for messages.
        entrypoint: `package.module:name`.

    Raises:
        UserCodeFailed: the module cannot be imported, or has no such name.
    """
    module, _, name = entrypoint.partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except Exception as error:  # an import runs the user's code
        raise UserCodeFailed(
            f"{label} {entrypoint} cannot be imported: got {type(error).__name__}: {error}; "
            f"correct it\n{traceback.format_exc()}"
        ) from None


def call(label: str, function: Callable[..., T], *arguments: Any, **parameters: Any) -> T:
    """Call a user's function.

    Args:
        label: of the function, for messages.
        function: of the user.
        arguments: of the call.
        parameters: of the call.

    Raises:
        UserCodeFailed: it raises; the message has its traceback.
    """
    try:
        return function(*arguments, **parameters)
    except Exception as error:  # a user's code may raise anything
        # The message has the traceback, without its first frame, which is this one.
        raised = error.__traceback__.tb_next if error.__traceback__ else None
        text = "".join(traceback.format_exception(type(error), error, raised))
        raise UserCodeFailed(
            f"{label} raised {type(error).__name__}: {error}; correct it\n{text}"
        ) from None
