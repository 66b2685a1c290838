"""Exit codes of the driver and of every `rlhf` command: the one table."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """Meaning of an exit code for scripts, the operator and failure rules."""

    DONE = 0
    """Finished."""
    BUG = 1
    """A bug in this software."""
    MANIFEST = 2
    """The manifest or the command line is wrong; running again cannot help."""
    USER = 3
    """The user's data or code is wrong; running again cannot help."""
    RETRIABLE = 4
    """The machine or the cluster failed; running again may help."""
    INTERRUPTED = 130
    """Stopped by Ctrl-C or SIGTERM."""
