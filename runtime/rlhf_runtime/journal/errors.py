"""Errors of the journal."""

from __future__ import annotations

from rlhf_api.errors import RlhfError
from rlhf_api.exits import ExitCode


class JournalMismatch(RlhfError):
    """A step that runs again asks another question than before, under the same settings."""

    reason = "JournalMismatch"
    exit_code = ExitCode.USER
