"""Whether and when a job goes on after a failure. Pure."""

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
    NodesMissing,
    NotEnoughResources,
    OutOfMemory,
    RayFailed,
    WorkerRaised,
)
from rlhf_runtime.telemetry.errors import CannotRecord

MAX_BACKOFF_SECONDS = 600.0
MAX_DOUBLINGS = 64
"""Beyond any wait; a job that is always restarted must not overflow."""
NOT_RETRIED = (
    CannotRecord,
    CheckpointFailed,
    DirtyCluster,
    ModelNotSaved,
    NodesMissing,
    NotEnoughResources,
    RayFailed,
)
"""Not tried again by themselves: checkpoint.onError has decided, or the machine lacks something
that new workers lack, too. Nodes have been waited for already."""
_NUMBER = re.compile(r"[0-9][0-9.a-f]*")


@dataclass
class Restarts:
    """Counts restarts, of one run of the driver."""

    policy: FailurePolicy
    number: int = 0
    """All restarts."""
    counted: int = 0
    """Those since the last new checkpoint that count against the limit."""
    _in_a_row: int = 0
    """All since the last new checkpoint."""
    _from_step: int = -2
    _last_signature: str = field(default="")

    def next_delay(self, error: RlhfError, from_step: int) -> float | None:
        """How long to wait before the next start; None: there is none.

        The first one after a new checkpoint, or after the beginning, waits for nothing: that job
        has come somewhere. Every other one waits, also where the limit does not count it: nothing
        may fail over and over without a pause.

        Args:
            error: what ended the incarnation.
            from_step: the step of the checkpoint that the next one would go on from; -1: none.
        """
        if from_step > self._from_step:
            self._from_step, self.counted, self._in_a_row, self._last_signature = (
                from_step,
                0,
                0,
                "",
            )
        action = self._rule_action(error) or self._default_action(error)
        self._last_signature = _error_signature(error)
        if action is FailureAction.FAIL:
            return None
        if action is FailureAction.RESTART:
            if self.counted >= self.policy.max_restarts:
                return None
            self.counted += 1
        self.number += 1
        self._in_a_row += 1
        return self._backoff_seconds()

    def _backoff_seconds(self) -> float:
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
        """What the manifest has no rule for."""
        if isinstance(error, WorkerRaised | OutOfMemory):
            # What came twice at the same place will come again.
            again = _error_signature(error) != self._last_signature
        else:
            again = error.exit_code is ExitCode.RETRIABLE and not isinstance(error, NOT_RETRIED)
        return FailureAction.RESTART if again else FailureAction.FAIL


def _error_signature(error: RlhfError) -> str:
    """What two errors of the same cause have in common."""
    first, _, _ = str(error).partition("\n")
    return f"{error.reason}: {_NUMBER.sub('#', first)}"
