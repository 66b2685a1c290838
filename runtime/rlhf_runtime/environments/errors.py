"""Errors of environments.

RlhfError
├── InvalidEnvironment     a class or tool is unusable: it does not import, has no hints or
│   │                      docstrings, or does not fit its parameters (exit code 3)
│   ├── ImportFailed       its module does not import on this machine
│   │   └── ImportTimedOut its module takes too long to import
│   └── ServerUnusable     a server of tools cannot be used on this machine
│       └── ServerUnreachable it does not answer; it may do so later (exit code 4)
├── ToolsChanged           a server's tools are not those of the prompts any more (exit code 3)
├── EnvironmentsFailed     too many conversations of a step have failed (exit code 3)
└── EnvironmentsLost       the server of conversations' processes ends again and again (exit code 4)
"""

from __future__ import annotations

from rlhf_api.errors import RlhfError
from rlhf_api.exits import ExitCode


class InvalidEnvironment(RlhfError):
    """An unusable environment or tool.

    entrypoint: of the class or function; empty: not known.
    """

    reason = "InvalidEnvironment"
    exit_code = ExitCode.USER

    def __init__(self, message: str, entrypoint: str = "") -> None:
        super().__init__(message)
        self.entrypoint = entrypoint


class ImportFailed(InvalidEnvironment):
    """A module that does not import here; another machine may have what it needs."""


class ImportTimedOut(ImportFailed):
    """A module that takes too long to import."""


class ServerUnusable(InvalidEnvironment):
    """A server of tools that cannot be used here; another machine may have what it needs."""


class ServerUnreachable(ServerUnusable):
    """A server of tools that does not answer."""

    reason = "ServerUnreachable"
    # It may start later than the job.
    exit_code = ExitCode.RETRIABLE


class ToolsChanged(RlhfError):
    """Tools of a server that are not those that the job's prompts describe."""

    reason = "ToolsChanged"
    exit_code = ExitCode.USER


class EnvironmentsFailed(RlhfError):
    """Too many conversations of a step have failed."""

    reason = "EnvironmentsFailed"
    exit_code = ExitCode.USER

    def __init__(self, text: str, step: int, in_evaluation: bool) -> None:
        """
        Args:
            text: of the message.
            step: of the conversations.
            in_evaluation: True if they are of the evaluation after it.
        """
        super().__init__(text)
        self.first_step, self.in_evaluation = step, in_evaluation


class EnvironmentsLost(RlhfError):
    """The server of the conversations' processes cannot be started again."""

    reason = "EnvironmentsLost"
    exit_code = ExitCode.RETRIABLE
