"""The command line of a Python process that imports what this one can import."""

from __future__ import annotations

import json
import sys

_SET_PATH = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "


def child_command(program: str, *arguments: str) -> list[str]:
    """Return the command line.

    Args:
        program: Python code; its arguments are sys.argv[2:].
        arguments: of the program.
    """
    # -P keeps the working directory off the path; this process's path is passed on.
    return [sys.executable, "-P", "-c", _SET_PATH + program, json.dumps(sys.path), *arguments]
