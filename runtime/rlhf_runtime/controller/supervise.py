"""Keeps a job going: when an incarnation of workers fails, the next one takes over."""

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
        incarnation: runs one from a checkpoint or from the start; returns whether the job came to
            its end.
        saves: know the checkpoint to go on from.
        restarts: decides whether there is another one.
        journal: hears of failures.
        begin_again: called before each further incarnation.
        stop: whether somebody wants the job to stop: then a failure is its end.
        sleep: waits so many seconds.

    Raises:
        RlhfError: the failure after which there is no other one.
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
