"""Checks of entry points: file names instead of modules, and async functions. Standard library
only."""

from __future__ import annotations

import inspect


def entrypoint_from_file(entrypoint: str) -> str:
    """Convert an entry point that names a file.

    `addv.py:score` becomes `addv:score`, and `./verifiers/addv.py:score` becomes
    `verifiers.addv:score`. Empty if the text names no file, or a file whose module depends on the
    Python path (absolute, or with `..`).
    """
    file, _, name = entrypoint.partition(":")
    parts = [part for part in file.removesuffix(".py").split("/") if part not in ("", ".")]
    if not file.endswith(".py") or file.startswith(("/", "~")) or ".." in parts:
        return ""
    return f"{'.'.join(parts)}:{name}"


def deferred_kind(function: object) -> str:
    """Name the kind of a function whose call does not return its result: "an async function", "an
    async generator" or "a generator". Empty for others."""
    called = inspect.getattr_static(type(function), "__call__", None)
    for candidate in (function, called):
        if inspect.iscoroutinefunction(candidate):
            return "an async function"
        if inspect.isasyncgenfunction(candidate):
            return "an async generator"
        if inspect.isgeneratorfunction(candidate):
            return "a generator"
    return ""
