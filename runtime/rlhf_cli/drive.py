"""`rlhf drive`: the whole life of a job in a Ray cluster, told to whoever asks over HTTP.

Its own end is the last thing that it tells: in the log, and at the port until somebody has read it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import typer

from rlhf_api.exits import ExitCode
from rlhf_api.on_cluster import DRIVER_LOG, FINAL_REPORT, TOKEN_VARIABLE, job_from_submission
from rlhf_api.report import RunPhase
from rlhf_api.spec.job import RLHFJob
from rlhf_cli.driver_log import DriverLog
from rlhf_cli.guard import tell
from rlhf_cli.planned import devices_text
from rlhf_cli.preflight import Target, checked, left_to_workers
from rlhf_cli.resume import check_changes, has_work, open_store
from rlhf_cli.stopping import hold_signals, take_over_signals
from rlhf_cli.train import Task, ending_of, train
from rlhf_cli.user_code import mounted_code
from rlhf_cli.validate import jobs_of, lines_of, only_job
from rlhf_flow.errors import NotOffered
from rlhf_flow.jobs.lint import lint_job
from rlhf_planner.problem.devices import inventory_from_pools
from rlhf_runtime.controller.ray_cluster import CLEAN_SECONDS, NODES_SECONDS, RayCluster
from rlhf_runtime.controller.run_lock import lock_folder
from rlhf_runtime.controller.stop import StopRequest
from rlhf_runtime.errors import DirtyCluster, FolderInUse
from rlhf_runtime.faults import parse_fault, require_at_home, require_targets
from rlhf_runtime.patience import Patience
from rlhf_runtime.preflight.limits import QUICK
from rlhf_runtime.telemetry.progress import Both, make_progress
from rlhf_runtime.telemetry.run_folder import RunFolder
from rlhf_runtime.telemetry.status_board import StatusBoard
from rlhf_runtime.telemetry.status_progress import StatusProgress, reportable
from rlhf_runtime.telemetry.status_server import StatusServer

LINGER_SECONDS = 60.0
"""How long the final report is served at most where nobody acknowledges it."""
PORT_SECONDS = LINGER_SECONDS + 15.0
"""How long the port is tried: a predecessor may linger at it."""
EVERYWHERE = "0.0.0.0"


@dataclass(frozen=True)
class DriverStart:
    """One start of a driver, as its command line asks for it."""

    file: Path
    """The manifest."""
    output: Path
    """The run's folder."""
    submission: str
    """JOB-ATTEMPT-RESTART."""
    report_port: int
    """Where the report is served; 0: at any port that is free."""
    ray_address: str
    """The cluster; auto: as the environment says."""
    code: Path
    """Where the user's own Python is mounted."""
    inject: tuple[str, ...] = ()
    """Faults that are to happen, as the command line writes them."""


def drive_command(start: DriverStart) -> None:
    """Train, report, and end with the exit code. Raises typer.Exit in any case."""
    with DriverLog() as log:
        _drive_and_report(start, log)


def _drive_and_report(start: DriverStart, log: DriverLog) -> None:
    board = StatusBoard(job_from_submission(start.submission), start.submission)
    token = os.environ.get(TOKEN_VARIABLE, "")
    server = StatusServer(board, token)
    stop = StopRequest()
    take_over_signals(stop)
    try:
        server.open(
            EVERYWHERE, start.report_port, Patience(PORT_SECONDS, _say, stop.raise_if_requested)
        )
        _drive(start, board, stop, log)
        held = hold_signals()  # it has ended: nothing may come between this and the last report
        board.end(RunPhase.SUCCEEDED, ExitCode.DONE)
    except (Exception, KeyboardInterrupt) as error:
        held = hold_signals()
        outcome, reason, message = ending_of(error)
        board.end(RunPhase[outcome.name], tell(error), reason, message)
    sys.stderr.flush()
    report = board.latest.model_dump_json(by_alias=True, exclude_none=True)
    print(FINAL_REPORT + report, flush=True)
    with suppress(KeyboardInterrupt):
        take_over_signals(held)
        held.raise_if_requested()
        board.wait_until_acknowledged(LINGER_SECONDS if token else 0.0)
    server.close()
    raise typer.Exit(board.latest.exit_code or ExitCode.DONE)


def _drive(start: DriverStart, board: StatusBoard, stop: StopRequest, log: DriverLog) -> None:
    """Everything between the first report and the last."""
    faults = tuple(map(parse_fault, start.inject))
    job = only_job(jobs_of(start.file), start.file)
    board.update(total_steps=job.spec.schedule.steps)
    folder = RunFolder(start.output)
    progress = Both(make_progress(sys.stderr), StatusProgress(board))
    require_shared_storage(job)
    cluster = Target(
        pools=lambda: inventory_from_pools(job.spec.resources.node_pools),
        code=mounted_code(job, start.code),
        lines=partial(lines_of, start.file, job),
        one_machine=False,
    )
    with checked(job, cluster, QUICK) as ready:
        graphs, plan = ready.planned
        require_targets(faults, plan.num_devices)
        require_at_home(faults)
        log.keep_at(folder.path / DRIVER_LOG)
        with _locked(
            folder.path, Patience(CLEAN_SECONDS, progress.notice, stop.raise_if_requested)
        ):
            store = open_store(job, folder, fresh=False)
            if not has_work(folder, job, fresh=False, lines=ready.lines):
                _tell_what_was(folder, board)
                return
            changed = check_changes(job, folder, store, devices_text(plan), ready.lines)
            nodes_deadline_seconds = float(job.spec.start_deadline_seconds or NODES_SECONDS)
            site = RayCluster(
                start.ray_address,
                nodes_deadline_seconds,
                progress.notice,
                stop.raise_if_requested,
                board.beat,
            )
            notices = [*changed, *lint_job(job, graphs, plan.device), *left_to_workers(ready)]
            path = ready.python_path
            train(Task(job, plan, folder, store, site, stop, progress, path, faults, notices))


def require_shared_storage(job: RLHFJob) -> None:
    """Check that the job asks for no storage beside the run's folder.

    Raises:
        NotOffered: it does.
    """
    storage = job.spec.checkpoint.storage
    if storage is not None and storage.uri is not None:
        raise NotOffered(
            "on a cluster a run's folder and its checkpoints are on one volume that all pods "
            f"mount: got checkpoint.storage.uri {storage.uri}, allowed persistentVolumeClaim; name "
            "a claim of access mode ReadWriteMany"
        )


@contextmanager
def _locked(folder: Path, patience: Patience) -> Iterator[None]:
    """Hold the run's folder; a driver that was lost may hold it a moment longer.

    Raises:
        DirtyCluster: somebody does for too long.
    """
    with ExitStack() as held:

        def taken_by() -> str:
            try:
                held.enter_context(lock_folder(folder))
            except FolderInUse as error:
                return str(error)
            return ""

        if taken := patience.until_free(taken_by):
            raise DirtyCluster(
                f"an earlier driver still writes to the run's folder: got {taken}; after "
                f"{patience.seconds:g} s; end it: the job goes on from its newest checkpoint"
            )
        yield


def _tell_what_was(folder: RunFolder, board: StatusBoard) -> None:
    """Report a run that had ended before as it ended."""
    steps = folder.read().steps
    if steps:
        board.update(step=steps[-1].step, metrics=reportable(steps[-1].metrics))


def _say(text: str) -> None:
    typer.echo(text, err=True)
