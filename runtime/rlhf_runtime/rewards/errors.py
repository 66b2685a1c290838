"""Errors of rewards.

RlhfError
└── RewardError            a verifier failed and onError is fail (exit code 3)
    ├── NothingScored      not one sample of a batch could be scored
    └── InvalidReward      a verifier cannot be used at all: it does not import, is no function,
        │                  or does not take its parameters
        ├── LoadsSlowly    its module has not been imported in time
        ├── RaisesLoading  its module raised while it was imported
        └── DiesLoading    its process ended while its module was imported
"""

from __future__ import annotations

from rlhf_api.errors import RlhfError
from rlhf_api.exits import ExitCode


class RewardError(RlhfError):
    """A verifier failed while onError is fail; the text holds its traceback."""

    reason = "RewardFailed"
    exit_code = ExitCode.USER


class NothingScored(RewardError):
    """Not one sample of a batch could be scored: there is nothing to learn from."""

    reason = "NothingScored"
    exit_code = ExitCode.USER


class InvalidReward(RewardError):
    """A verifier that cannot be used at all."""

    reason = "InvalidReward"
    exit_code = ExitCode.USER


class LoadsSlowly(InvalidReward):
    """A verifier whose module has not been imported in time."""


class RaisesLoading(InvalidReward):
    """A verifier whose module raised while it was imported."""


class DiesLoading(InvalidReward):
    """A verifier whose process ended while it imported the module."""
