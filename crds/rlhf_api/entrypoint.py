"""What a user meant by an entry point that names a file. Standard library only."""

from __future__ import annotations


def as_module(entrypoint: str) -> str:
    """The entry point of a function that was named by its file; empty if it names none.

    `addv.py:score` is `addv:score`, and `./code/addv.py:score` is `code.addv:score`.
    """
    file, _, name = entrypoint.partition(":")
    if not file.endswith(".py"):
        return ""
    parts = [part for part in file.removesuffix(".py").split("/") if part not in ("", ".")]
    return f"{'.'.join(parts)}:{name}"
