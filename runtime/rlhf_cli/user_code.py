"""Where a job's own Python is found while a command runs."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rlhf_api import RLHFJob


@contextmanager
def user_code(job: RLHFJob, folder: Path) -> Iterator[tuple[str, ...]]:
    """Put `spec.code.local` and the current folder on the Python path; gives both.

    Args:
        job: the manifest.
        folder: where its file is; `spec.code.local` is relative to it.
    """
    code = job.spec.code
    local = [] if code is None or code.local is None else [str((folder / code.local).resolve())]
    wanted = (*local, os.getcwd())
    entries = [entry for entry in wanted if entry not in sys.path]
    sys.path[:0] = entries
    try:
        yield wanted
    finally:
        for entry in entries:
            sys.path.remove(entry)
