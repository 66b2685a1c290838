"""Decides if and when a job restarts after a failure. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from rlhf_api.errors import RlhfError
from rlhf_api.exits import ExitCode
from rlhf_api.spec.failure import FailureAction, FailurePolicy
from rlhf_runtime.errors import (
    CheckpointFailed,
    DirtyCluster,
    ModelNotSaved,
    NodeLost,
    NodesMissing,
    NoSpace,
    NotEnoughResources,
    OutOfMemory,
    RayFailed,
    WorkerRaised,
)
from rlhf_runtime.telemetry.errors import CannotRecord

MAX_BACKOFF_SECONDS = 600.0
# Enough to exceed every limit; unlimited restarts must not overflow a float.
MAX_DOUBLINGS = 64
# Errors without a restart of the workers.
NOT_RETRIED = (
    CannotRecord,  # the folder stays the same
    CheckpointFailed,  # checkpoint.onError has decided
    DirtyCluster,  # the end of its workers was waited for
    ModelNotSaved,  # the folder stays the same
    NodesMissing,  # they were waited for
    NoSpace,  # it was waited for
    NotEnoughResources,  # the machine stays the same
    RayFailed,  # only a new driver starts Ray again
)
_NUMBER = re.compile(r"[0-9][0-9.a-f]*")


@dataclass
class Restarts:
    """Counts restarts of one run of the driver."""

    policy: FailurePolicy
    number: int = 0
    """All restarts."""
    counted: int = 0
    """Restarts since the last new checkpoint that count towards maxRestarts."""
    disruptions: int = 0
    """Restarts since the last new checkpoint that count towards maxDisruptions."""
    # All restarts since the last new checkpoint.
    _in_a_row: int = 0
    _from_step: int = -2
    _last_signature: str = field(default="")

    def next_delay(self, error: RlhfError, from_step: int) -> float | None:
        """Return the delay before the next start; None: no restart.

        The first restart after a new checkpoint, or after the beginning, has no delay.

        Args:
            error: the error that ended the incarnation.
            from_step: step of the checkpoint for the next one; -1: none.
        """
        if from_step > self._from_step:
            self._from_step, self._in_a_row, self._last_signature = from_step, 0, ""
            self.counted = self.disruptions = 0
        rule = self._rule_action(error)
        action = rule or self._default_action(error)
        self._last_signature = _error_signature(error)
        if action is FailureAction.FAIL:
            return None
        if rule is None and isinstance(error, NodeLost):
            if self.disruptions >= self.policy.max_disruptions:
                return None
            self.disruptions += 1
        elif action is FailureAction.RESTART:
            if self.counted >= self.policy.max_restarts:
                return None
            self.counted += 1
        self.number += 1
        self._in_a_row += 1
        return self._backoff_seconds()

    def _backoff_seconds(self) -> float:
        # The first restart since the last checkpoint or the beginning does not wait. All others do,
        # even uncounted ones: nothing may fail over and over without a pause.
        if self._in_a_row == 1:
            return 0.0
        doublings = min(self._in_a_row - 2, MAX_DOUBLINGS)
        return min(self.policy.backoff_seconds * 2.0**doublings, MAX_BACKOFF_SECONDS)

    def _rule_action(self, error: RlhfError) -> FailureAction | None:
        for rule in self.policy.rules:
            if rule.on_reason == error.reason or error.exit_code in (rule.on_exit_codes or ()):
                return rule.action
        return None

    def _default_action(self, error: RlhfError) -> FailureAction:
        """Return the action for an error without a rule in the manifest."""
        if error.is_disk_full and not isinstance(error, NoSpace):
            retries = True  # space is waited for before the next start
        elif isinstance(error, WorkerRaised | OutOfMemory):
            # An error that comes twice in a row would probably come a third time.
            retries = _error_signature(error) != self._last_signature
        else:
            retries = error.exit_code is ExitCode.RETRIABLE and not isinstance(error, NOT_RETRIED)
        return FailureAction.RESTART if retries else FailureAction.FAIL


def _error_signature(error: RlhfError) -> str:
    """Return the text that two errors of the same cause have in common."""
    first, _, _ = str(error).partition("\n")
    return f"{error.reason}: {_NUMBER.sub('#', first)}"
