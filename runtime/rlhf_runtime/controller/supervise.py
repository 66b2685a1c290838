"""Keeps a job running: after a failure, the next incarnation of workers takes over."""

from __future__ import annotations

import time
from collections.abc import Callable

from rlhf_api.errors import RlhfError
from rlhf_runtime.checkpoint.store import Checkpoint
from rlhf_runtime.controller.restarts import Restarts
from rlhf_runtime.controller.saves import CheckpointManager
from rlhf_runtime.controller.stop import StopRequest
from rlhf_runtime.telemetry.errors import RunFolderLost
from rlhf_runtime.telemetry.journal import Journal


def supervise(
    incarnation: Callable[[Checkpoint | None], bool],
    saves: CheckpointManager,
    restarts: Restarts,
    journal: Journal,
    begin_again: Callable[[], None],
    stop: StopRequest,
    sleep: Callable[[float], None] = time.sleep,
) -> bool:
    """Run incarnations, each from the newest checkpoint, until one does not fail.

    Args:
        incarnation: runs from a checkpoint or from the start; returns True if the job is complete.
        saves: provide the newest checkpoint.
        restarts: decide about another start.
        journal: records failures.
        begin_again: called before each further incarnation.
        stop: if a stop is requested, a failure ends the job.
        sleep: waits so many seconds.

    Raises:
        RlhfError: the failure without another start.
    """
    while True:
        try:
            checkpoint = saves.newest()
            if checkpoint is not None:
                journal.resumed(checkpoint.record.step, checkpoint.address)
            return incarnation(checkpoint)
        except RlhfError as error:
            if stop.requested and not isinstance(error, RunFolderLost):
                journal.notice(f"{error.reason}: {error}")
                return False
            seconds = restarts.next_delay(error, saves.newest_step)
            if seconds is None:
                raise
            journal.restarting(restarts.number, seconds, error.reason, str(error))
        sleep(seconds)
        begin_again()
