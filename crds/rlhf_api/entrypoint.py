"""What a user meant by an entry point that names a file. Standard library only."""

from __future__ import annotations


def as_module(entrypoint: str) -> str:
    """The entry point of a function that was named by its file; empty if it names none, or one
    whose module depends on which folder is on the Python path: absolute, or with `..`.

    `addv.py:score` is `addv:score`, and `./verifiers/addv.py:score` is `verifiers.addv:score`.
    """
    file, _, name = entrypoint.partition(":")
    parts = [part for part in file.removesuffix(".py").split("/") if part not in ("", ".")]
    if not file.endswith(".py") or file.startswith(("/", "~")) or ".." in parts:
        return ""
    return f"{'.'.join(parts)}:{name}"
