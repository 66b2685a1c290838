"""Train a planned job to its end, on one machine or in a Ray cluster."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from rlhf_api.changes import spec_document
from rlhf_api.plan import Plan
from rlhf_api.spec.checkpoint import JournalMode
from rlhf_api.spec.job import RLHFJob
from rlhf_cli.recorded_run import recorded_run, run_record, worker_settings
from rlhf_cli.resume_checks import note_checkpoint_mismatch
from rlhf_runtime.checkpoint.store import Checkpoint, CheckpointStore
from rlhf_runtime.controller.job_run import JobRun
from rlhf_runtime.controller.restarts import Restarts
from rlhf_runtime.controller.saves import CheckpointManager
from rlhf_runtime.controller.space_wait import SpaceWait
from rlhf_runtime.controller.stop import StopRequest
from rlhf_runtime.controller.supervise import supervise
from rlhf_runtime.controller.worker_sites import Site
from rlhf_runtime.controller.workers import WorkerSettings
from rlhf_runtime.disk_space import require_space
from rlhf_runtime.environments.errors import EnvironmentsFailed
from rlhf_runtime.errors import StorageFailed
from rlhf_runtime.faults import DRIVER, Fault, announce, pending_faults
from rlhf_runtime.journal.folder import JournalFolder, Position
from rlhf_runtime.journal.settings_digest import settings_of
from rlhf_runtime.python_path import PythonPath
from rlhf_runtime.rewards.errors import NothingScored
from rlhf_runtime.telemetry.errors import CannotRecord, RunFolderLost
from rlhf_runtime.telemetry.progress import Progress
from rlhf_runtime.telemetry.records import Outcome, RunRecord
from rlhf_runtime.telemetry.run_folder import RunFolder
from rlhf_runtime.telemetry.run_recorder import RunRecorder
from rlhf_runtime.telemetry.tracked_run import TrackedRun
from rlhf_runtime.telemetry.trackers import make_trackers


@dataclass(frozen=True)
class TrainingTask:
    """A job that has passed every check, with everything that training needs."""

    job: RLHFJob
    plan: Plan
    folder: RunFolder
    store: CheckpointStore
    site: Site
    stop: StopRequest
    progress: Progress
    python_path: PythonPath
    """Folders of the user's own code and its packages."""
    faults: tuple[Fault, ...] = ()
    notices: Sequence[str] = ()
    """Sentences that are shown before training starts."""


def train(task: TrainingTask) -> str:
    """Train until the job's end, and record how it ended.

    Returns:
        Why training ended before its last step. Empty: all steps are done.

    Raises:
        RlhfError: a failure that allows no restart.
        KeyboardInterrupt: a signal asked for it; the state is saved.
    """
    job, folder, store = task.job, task.folder, task.store
    trackers = make_trackers(job.spec.telemetry, TrackedRun.of(job, folder.path))
    space = SpaceWait(
        job.spec.failure_policy.space_deadline_seconds,
        folder.path,
        task.stop,
        task.progress.waiting_for_space,
        task.site.report_alive,
    )
    recorder = RunRecorder(folder, task.progress, trackers, space.until_written)
    journal = _journal(task, recorder)
    saves = CheckpointManager(
        store, job.spec.checkpoint, spec_document(job.spec), recorder, task.plan, journal
    )
    has_run = folder.metrics.exists()
    record = run_record(job, task.plan, folder, task.python_path)
    try:
        with recorded_run(job, task.plan, recorder, record, task.site, task.stop) as open_site:
            note_checkpoint_mismatch(store, has_run, recorder)
            for notice in task.notices:
                recorder.notice(notice)
            open_site()
            settings = worker_settings(folder, task.python_path, task.faults)
            if task.faults:
                announce(settings.logs, DRIVER)
            _run_to_end(task, settings, recorder, saves, journal, record, space)
            _note_missed_faults(task, settings, recorder)
            recorder.end(Outcome.SUCCEEDED)
    except RunFolderLost as error:
        raise RunFolderLost(f"{error}; {remaining_checkpoints_text(store)}") from error
    return recorder.early_stop


def _run_to_end(
    task: TrainingTask,
    settings: WorkerSettings,
    recorder: RunRecorder,
    saves: CheckpointManager,
    journal: JournalFolder,
    record: RunRecord,
    space: SpaceWait,
) -> None:
    """Run workers, and restart them as the failure policy allows, until training has ended."""

    def start(step: int) -> JobRun:
        recorder.require_folder()
        own = replace(settings, attempt=journal.begin(step))
        return JobRun(
            task.job,
            task.plan,
            own,
            recorder,
            saves,
            task.stop,
            task.site,
            until_written=space.until_written,
        )

    finished = supervise(
        partial(_run_workers, start, task.folder.model, partial(note_failure, journal, recorder)),
        saves,
        Restarts(task.job.spec.failure_policy),
        recorder,
        lambda: recorder.begin(replace(record, workers_started=time.time())),
        task.stop,
        task.site.lost_nodes,
        await_space=partial(space.until_written, partial(require_space, task.folder.path)),
    )
    if not finished:
        # Supervision ended before the job did: a signal has stopped it after a step.
        raise KeyboardInterrupt


def _journal(task: TrainingTask, recorder: RunRecorder) -> JournalFolder:
    """Return the journal of the run; it keeps nothing if only models score."""
    spec = task.job.spec
    is_needed = any(reward.scorer is not None for reward in spec.rewards)
    mode = spec.checkpoint.journal if is_needed else JournalMode.OFF
    settings = settings_of(spec, task.plan, task.python_path)
    return JournalFolder(task.folder.journal, settings, mode, recorder.notice_once)


def _note_missed_faults(
    task: TrainingTask, settings: WorkerSettings, recorder: RunRecorder
) -> None:
    for fault in pending_faults(task.faults, settings.logs):
        recorder.notice(
            f"--inject {fault.name} did not happen: no process entered {fault.phase.value} in "
            f"step {fault.step}"
        )


def remaining_checkpoints_text(store: CheckpointStore) -> str:
    """Text about the checkpoints of a job whose folder was deleted."""
    try:
        steps = store.steps()
    except StorageFailed as error:
        return f"the checkpoints cannot be listed ({error})"
    if not steps:
        return f"no checkpoint is in {store.address}: the same command starts from the beginning"
    return (
        f"checkpoints up to step {steps[0]} are in {store.address}: the same command resumes there"
    )


def _run_workers(
    start: Callable[[int], JobRun],
    model: Path,
    on_failure: Callable[[BaseException], None],
    checkpoint: Checkpoint | None,
) -> bool:
    """Start workers and run them to their end; return True if the job has finished."""
    run = start(0 if checkpoint is None else checkpoint.record.step)
    try:
        finished = run.run(model, checkpoint)
    except BaseException as error:
        # An orderly close would wait for calls that may never return.
        run.kill()
        on_failure(error)
        raise
    run.close()
    return finished


def note_failure(journal: JournalFolder, recorder: RunRecorder, error: BaseException) -> None:
    """Forget what the next workers must ask again.

    Raises:
        RunFolderLost: the cause of the failure is that the run's folder was deleted.
    """
    if isinstance(error, CannotRecord):
        recorder.require_folder()
    if isinstance(error, NothingScored | EnvironmentsFailed):
        with suppress(CannotRecord):  # the error itself matters more
            journal.forget_from(Position(error.first_step, error.in_evaluation))
