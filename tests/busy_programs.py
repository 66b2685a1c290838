"""Programs that use all processor time they can get."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def busy_programs(number: int) -> Iterator[None]:
    """Run a number of them."""
    # Each in its own session: Linux first divides processor time between sessions.
    command = [sys.executable, "-c", "while True: pass"]
    programs = [subprocess.Popen(command, start_new_session=True) for _ in range(number)]
    try:
        yield
    finally:
        for program in programs:
            program.kill()
            program.wait()
