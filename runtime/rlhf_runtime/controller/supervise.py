"""Keeps a job running: after a failure, the next incarnation of workers takes over."""

from __future__ import annotations

import time
from collections.abc import Callable

from rlhf_api.errors import RlhfError
from rlhf_runtime.checkpoint.store import Checkpoint
from rlhf_runtime.controller.restarts import Restarts
from rlhf_runtime.controller.saves import CheckpointManager
from rlhf_runtime.controller.stop import StopRequest
from rlhf_runtime.errors import NodeLost, NoProgress, NoSpace, WorkerLost, WorkerRaised
from rlhf_runtime.hooks import Hook, noop
from rlhf_runtime.telemetry.errors import RunFolderLost
from rlhf_runtime.telemetry.run_recorder import RunRecorder


def supervise(
    incarnation: Callable[[Checkpoint | None], bool],
    saves: CheckpointManager,
    restarts: Restarts,
    recorder: RunRecorder,
    begin_again: Callable[[], None],
    stop: StopRequest,
    lost_nodes: Callable[[], str],
    sleep: Callable[[float], None] = time.sleep,
    await_space: Hook = noop,
) -> bool:
    """Run incarnations, each from the newest checkpoint, until one does not fail.

    Args:
        incarnation: runs from a checkpoint or from the start; returns True if the job is complete.
        saves: provide the newest checkpoint.
        restarts: decide about another start.
        recorder: records failures.
        begin_again: called before each further incarnation.
        stop: if a stop is requested, a failure ends the job.
        lost_nodes: describes the nodes of the last workers that exist no more; empty: none.
        sleep: waits so many seconds.
        await_space: called after a failure by a full disk; returns when it has space.

    Raises:
        RlhfError: the failure without another start.
    """
    while True:
        try:
            checkpoint = saves.newest()
            if checkpoint is not None:
                recorder.resumed(checkpoint.record.step, checkpoint.address)
            return _run(incarnation, checkpoint, lost_nodes)
        except RlhfError as error:
            if stop.requested and not isinstance(error, RunFolderLost):
                recorder.notice(f"{error.reason}: {error}")
                return False
            seconds = restarts.next_delay(error, saves.newest_step)
            if seconds is None:
                if error.is_disk_full and not isinstance(error, NoSpace):
                    # Another driver would fail as these workers did.
                    raise NoSpace(f"{error.reason}: {error}") from error
                raise
            recorder.restarting(restarts.number, seconds, error.reason, str(error))
            is_disk_full = error.is_disk_full
        sleep(seconds)
        if is_disk_full:
            await_space()
        begin_again()


def _run(
    incarnation: Callable[[Checkpoint | None], bool],
    checkpoint: Checkpoint | None,
    lost_nodes: Callable[[], str],
) -> bool:
    """Run an incarnation.

    Raises:
        NodeLost: workers failed, and a node of them is gone.
        RlhfError: any other failure.
    """
    try:
        return incarnation(checkpoint)
    except (NoProgress, WorkerLost, WorkerRaised) as error:
        nodes = lost_nodes()
        if not nodes:
            raise
        first, _, _ = str(error).partition("\n")
        raise NodeLost(f"nodes of the workers are lost: got {nodes}; {first}") from error
