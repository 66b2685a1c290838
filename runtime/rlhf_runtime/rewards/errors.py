"""Errors of rewards.

RlhfError
└── RewardError            a verifier failed and onError is fail (exit code 3)
    ├── NothingScored      a reward failed on every sample, or no sample of several steps in a row
    │                      has a score that counts
    └── InvalidReward      a verifier is unusable: it does not import, is not a function, does not
        │                  take its parameters, or fails on rows before a start
        ├── LoadTimedOut   importing its module took too long
        ├── LoadRaised     its module raised while it was imported
        └── LoadCrashed    its process exited while its module was imported
"""

from __future__ import annotations

from rlhf_api.errors import RlhfError
from rlhf_api.exits import ExitCode


class RewardError(RlhfError):
    """A verifier failed while onError is fail; the text holds its traceback."""

    reason = "RewardFailed"
    exit_code = ExitCode.USER


class NothingScored(RewardError):
    """A reward failed on every sample of a call, or no sample of several steps has a score."""

    reason = "NothingScored"
    exit_code = ExitCode.USER

    def __init__(self, text: str, first_step: int, in_evaluation: bool = False) -> None:
        """
        Args:
            text: of the message.
            first_step: the first step without a score.
            in_evaluation: True if it has scores, but the evaluation after it has none.
        """
        super().__init__(text)
        self.first_step, self.in_evaluation = first_step, in_evaluation


class InvalidReward(RewardError):
    """An unusable verifier."""

    reason = "InvalidReward"
    exit_code = ExitCode.USER


class LoadTimedOut(InvalidReward):
    """Importing the verifier's module took too long."""


class LoadRaised(InvalidReward):
    """The verifier's module raised while it was imported."""


class LoadCrashed(InvalidReward):
    """The verifier's process exited while it imported the module."""
