"""The driver of a job in a Ray cluster: train, and report the state over HTTP.

The final report is printed to the log, and served until the operator has acknowledged it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import typer

from rlhf_api.exits import ExitCode
from rlhf_api.on_cluster import (
    DRIVER_LOG,
    FINAL_REPORT,
    POD_ENDING_FILE,
    TOKEN_VARIABLE,
    job_from_submission,
)
from rlhf_api.reading.manifest import load_file
from rlhf_api.report import RunPhase
from rlhf_api.spec.job import RLHFJob
from rlhf_cli.command_errors import print_error
from rlhf_cli.driver_log import DriverLog
from rlhf_cli.folder_owner import (
    PACKAGES,
    FolderOwner,
    claim_folder,
    require_folder_of,
    will_continue,
)
from rlhf_cli.manifests import annotate_lines, require_one_job
from rlhf_cli.packages.installation import PackageStore
from rlhf_cli.packages.lock import keep_lock
from rlhf_cli.preflight import RunTarget, preflight, unchecked_notices
from rlhf_cli.rate_changes import changed_rates
from rlhf_cli.recorded_run import classify_ending
from rlhf_cli.resume_checks import (
    ON_CLUSTER,
    check_changes,
    open_store,
    prepare_run_folder,
    start_facts,
)
from rlhf_cli.stopping import defer_signals, install_signal_handlers
from rlhf_cli.train import TrainingTask, train
from rlhf_cli.user_code import mounted_code
from rlhf_flow.errors import NotOffered
from rlhf_flow.jobs.lint import lint_job
from rlhf_planner.problem.devices import inventory_from_pools
from rlhf_runtime.bounded_wait import BoundedWait
from rlhf_runtime.controller.ray_cluster import CLEAN_SECONDS, NODES_SECONDS, RayCluster
from rlhf_runtime.controller.run_lock import lock_folder
from rlhf_runtime.controller.stop import StopRequest
from rlhf_runtime.errors import DirtyCluster, FolderInUse
from rlhf_runtime.faults import parse_fault, require_own_phase, require_targets
from rlhf_runtime.hooks import Hook
from rlhf_runtime.preflight.findings import QUICK
from rlhf_runtime.telemetry.json_log import json_stderr, log_fields
from rlhf_runtime.telemetry.progress import ProgressGroup, make_progress
from rlhf_runtime.telemetry.run_folder import RunFolder
from rlhf_runtime.telemetry.status_board import StatusBoard, StatusProgress, reportable
from rlhf_runtime.telemetry.status_server import StatusServer

LINGER_SECONDS = 60.0
"""Maximum time that the final report is served without an acknowledgement."""
PORT_SECONDS = LINGER_SECONDS + 15.0
"""Timeout for opening the port, which an earlier driver may still use."""
EVERYWHERE = "0.0.0.0"


@dataclass(frozen=True)
class DriverStart:
    """Arguments of `rlhf drive`."""

    file: Path
    """The manifest."""
    output: Path
    """The run's folder."""
    submission: str
    """JOB-ATTEMPT-RESTART."""
    report_port: int
    """Port of the report; 0: any free port."""
    ray_address: str
    """The Ray cluster; auto: from the environment."""
    code: Path
    """Mount point of the user's own Python."""
    job_uid: str | None = None
    """Uid of the RLHFJob. None: no operator, or one of an earlier release, started this driver."""
    inject: tuple[str, ...] = ()
    """Faults to cause, as --inject writes them."""


def drive_job(start: DriverStart) -> None:
    """Train, report and raise typer.Exit with the exit code."""
    board = StatusBoard(job_from_submission(start.submission), start.submission)
    with DriverLog() as log, ExitStack() as stack:
        # Inside of the log: its file has the same lines.
        if (fields := log_fields(os.environ)) is not None:
            stack.enter_context(json_stderr(fields, lambda: board.latest.step))
        _drive_and_report(start, board, log)


def _drive_and_report(start: DriverStart, board: StatusBoard, log: DriverLog) -> None:
    token = os.environ.get(TOKEN_VARIABLE, "")
    server = StatusServer(board, token)
    stop = StopRequest()
    # A signal may arrive while the port is still occupied: Kubernetes stops a pod at any time.
    install_signal_handlers(stop)
    try:
        # The port is opened before anything else, so that the operator learns of a refused
        # manifest, too.
        server.open(
            EVERYWHERE,
            start.report_port,
            BoundedWait(PORT_SECONDS, _notify, stop.raise_if_requested),
        )
        message = _drive(start, board, stop, log)
        # The job has ended: a signal must not interrupt the last report.
        deferred = defer_signals()
        board.end(RunPhase.SUCCEEDED, ExitCode.DONE, message=message)
    except (Exception, KeyboardInterrupt) as error:
        deferred = defer_signals()
        outcome, reason, message = classify_ending(error)
        board.end(RunPhase[outcome.name], print_error(error), reason, message)
    # stdout and stderr go to one log: what is said about an error has to precede the report.
    sys.stderr.flush()
    report = board.latest.model_dump_json(by_alias=True, exclude_none=True)
    # The operator reads this line from the submission's log where the port did not answer any more.
    print(FINAL_REPORT + report, flush=True)
    # A signal that came meanwhile shortens the wait, and changes neither report nor exit code.
    with suppress(KeyboardInterrupt):
        install_signal_handlers(deferred)
        deferred.raise_if_requested()
        # Without a token nobody can acknowledge. The operator asks no head that is being ended.
        is_awaited = bool(token) and not Path(POD_ENDING_FILE).exists()
        board.wait_until_acknowledged(LINGER_SECONDS if is_awaited else 0.0)
    server.close()
    raise typer.Exit(board.latest.exit_code or ExitCode.DONE)


def _drive(start: DriverStart, board: StatusBoard, stop: StopRequest, log: DriverLog) -> str:
    """Run the job from the first report to the last. Returns why training ended early, if so."""
    # Faults and manifest are checked before Ray is touched: mistakes in them cost no start.
    faults = tuple(map(parse_fault, start.inject))
    job = require_one_job(load_file(start.file, is_generated=True), start.file)
    board.update(total_steps=job.spec.schedule.steps)
    folder = RunFolder(start.output)
    progress = ProgressGroup(make_progress(sys.stderr), StatusProgress(board))
    require_shared_storage(job)
    owner = FolderOwner(namespace=job.metadata.namespace or "", name=job.name, uid=start.job_uid)

    def keep_alive() -> None:
        stop.raise_if_requested()
        board.beat()

    packages = partial(_package_store, job, folder.path, owner, progress.notice, keep_alive)
    cluster = RunTarget(
        pools=lambda: inventory_from_pools(job.spec.resources.node_pools),
        code=mounted_code(job, start.code, packages),
        lines=partial(annotate_lines, start.file, job),
        one_machine=False,
    )
    with preflight(job, cluster, QUICK) as ready:
        graphs, plan = ready.planned
        require_targets(faults, plan.num_devices)
        require_own_phase(faults)
        with _locked(
            folder.path, owner, BoundedWait(CLEAN_SECONDS, progress.notice, stop.raise_if_requested)
        ):
            takeover = claim_folder(folder.path, owner, job.spec.checkpoint.start)
            # Only from here on: a job that is refused writes nothing into a folder.
            log.keep_at(folder.path / DRIVER_LOG)
            _report_takeover(takeover, board)
            store = open_store(job, folder, fresh=False)
            # A driver that is started again after the job's end only reports that end again.
            if not prepare_run_folder(folder, job, False, ready.lines, ON_CLUSTER):
                return _report_earlier_result(folder, board, takeover)
            facts = start_facts(plan, ready.python_path)
            changed = check_changes(job, folder, store, facts, ready.lines, ON_CLUSTER)
            keep_lock(folder.path, job.spec.code, ready.python_path.packages)
            # Nodes may have to be created by an autoscaler, which the manifest's deadline allows
            # for.
            nodes_deadline_seconds = float(job.spec.start_deadline_seconds or NODES_SECONDS)
            site = RayCluster(
                start.ray_address,
                nodes_deadline_seconds,
                progress.notice,
                stop.raise_if_requested,
                board.beat,
            )
            notices = [
                *changed,
                *changed_rates(job, graphs, store),
                *lint_job(job, graphs, plan.device),
                *unchecked_notices(ready),
            ]
            path = ready.python_path
            return train(
                TrainingTask(job, plan, folder, store, site, stop, progress, path, faults, notices)
            )


def _package_store(
    job: RLHFJob,
    folder: Path,
    owner: FolderOwner,
    notify: Callable[[str], None],
    keep_alive: Hook,
) -> PackageStore:
    """Return the store of the job's packages, in the run's folder, which all pods mount.

    Raises:
        FolderOfAnotherJob: the folder belongs to another job, and nothing may be written there.
        FolderUnusable: the owner's record cannot be read.
    """
    is_resumed = will_continue(folder, owner, job.spec.checkpoint.start)
    return PackageStore(folder / PACKAGES, folder if is_resumed else None, notify, keep_alive)


def require_shared_storage(job: RLHFJob) -> None:
    """Check that checkpoints are stored in the run's folder.

    Raises:
        NotOffered: the manifest names another address.
    """
    storage = job.spec.checkpoint.storage
    if storage is not None and storage.uri is not None:
        raise NotOffered(
            "on a cluster all pods mount one volume for the run's folder and its checkpoints: "
            f"got checkpoint.storage.uri {storage.uri}, allowed persistentVolumeClaim; name "
            "a claim of access mode ReadWriteMany"
        )


@contextmanager
def _locked(folder: Path, owner: FolderOwner, wait: BoundedWait) -> Iterator[None]:
    """Lock the run's folder; wait for a lost driver of the same job to release it.

    Raises:
        FolderOfAnotherJob: the folder belongs to another job.
        DirtyCluster: it does not release it in time.
    """
    with ExitStack() as stack:

        def locked_by() -> str:
            # Before each try: the lock's owner may be another job, which has just begun.
            require_folder_of(folder, owner)
            try:
                stack.enter_context(lock_folder(folder))
            except FolderInUse as error:
                return str(error)
            return ""

        # The owner may be a driver whose end is not complete yet.
        if holder := wait.until_free(locked_by):
            raise DirtyCluster(
                f"an earlier driver still writes to the run's folder: got {holder}; after "
                f"{wait.seconds:g} s; end that driver; the job then resumes from its newest "
                "checkpoint"
            )
        yield


def _report_takeover(takeover: str, board: StatusBoard) -> None:
    """Report and log how the job has taken over its folder; nothing if it was new."""
    if takeover:
        _notify(takeover)
        board.update(takeover=takeover)


def _report_earlier_result(folder: RunFolder, board: StatusBoard, takeover: str) -> str:
    """Report the last step of a run that had ended before.

    Returns:
        Why it ended early, and whose run it was. Empty: all steps of the job's own run are done.
    """
    records = folder.read()
    reached = [step for step in records.steps if step.step <= records.reached_step]
    if reached:
        last = reached[-1]
        board.update(step=last.step, metrics=reportable(last.metrics))
    cause = records.end.message if records.end else ""
    # The job has trained nothing if the run was another one's.
    return f"{cause or 'all steps are done'}; {takeover}" if takeover else cause


def _notify(text: str) -> None:
    typer.echo(text, err=True)
