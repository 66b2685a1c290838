"""What a user meant by an entry point that names a file, or a function whose result comes later.
Standard library only."""

from __future__ import annotations

import inspect


def entrypoint_from_file(entrypoint: str) -> str:
    """The entry point of a function that was named by its file; empty if it names none, or one
    whose module depends on which folder is on the Python path: absolute, or with `..`.

    `addv.py:score` is `addv:score`, and `./verifiers/addv.py:score` is `verifiers.addv:score`.
    """
    file, _, name = entrypoint.partition(":")
    parts = [part for part in file.removesuffix(".py").split("/") if part not in ("", ".")]
    if not file.endswith(".py") or file.startswith(("/", "~")) or ".." in parts:
        return ""
    return f"{'.'.join(parts)}:{name}"


def deferred_kind(function: object) -> str:
    """What a function is whose call only prepares its result: "an async function" or "a generator";
    empty for others."""
    called = inspect.getattr_static(type(function), "__call__", None)
    for each in (function, called):
        if inspect.iscoroutinefunction(each) or inspect.isasyncgenfunction(each):
            return "an async function"
        if inspect.isgeneratorfunction(each):
            return "a generator"
    return ""
