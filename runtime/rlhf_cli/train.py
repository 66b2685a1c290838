"""Train a planned job to its end, on one machine or in a Ray cluster."""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import NoReturn

from rlhf_api.changes import spec_document
from rlhf_api.errors import RlhfError
from rlhf_api.exits import ExitCode
from rlhf_api.plan import Plan
from rlhf_api.spec.job import RLHFJob
from rlhf_api.yaml_dump import dump_yaml
from rlhf_cli.command_errors import print_error
from rlhf_cli.planning import devices_text
from rlhf_cli.resume import note_checkpoint_mismatch
from rlhf_cli.stopping import install_signal_handlers
from rlhf_runtime.checkpoint.store import Checkpoint, CheckpointStore
from rlhf_runtime.controller.job_run import JobRun
from rlhf_runtime.controller.ray_watch import RayWatch
from rlhf_runtime.controller.restarts import Restarts
from rlhf_runtime.controller.saves import CheckpointManager
from rlhf_runtime.controller.stop import StopRequest
from rlhf_runtime.controller.supervise import supervise
from rlhf_runtime.controller.worker_sites import Site
from rlhf_runtime.controller.workers import WorkerSettings
from rlhf_runtime.errors import RayFailed, StorageFailed
from rlhf_runtime.faults import DRIVER, Fault, announce, pending_faults
from rlhf_runtime.telemetry.errors import CannotRecord, RunFolderLost
from rlhf_runtime.telemetry.journal import Journal
from rlhf_runtime.telemetry.progress import Progress
from rlhf_runtime.telemetry.records import Outcome, RunRecord
from rlhf_runtime.telemetry.run_folder import RunFolder
from rlhf_runtime.telemetry.trackers import make_trackers

# Longer than any call: ranks wait in collectives for others that still generate. A hung rank is
# found by failurePolicy.progressDeadlineSeconds, a dead one by Ray.
COLLECTIVE_SECONDS = 86400.0
"""Timeout of a collective."""


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
    python_path: tuple[str, ...]
    """Folders of the user's own code."""
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
    trackers = make_trackers(job.spec.telemetry, job.name, folder.path)
    journal = Journal(folder, task.progress, trackers)
    saves = CheckpointManager(
        store, job.spec.checkpoint, spec_document(job.spec), journal, task.plan
    )
    has_run = folder.metrics.exists()
    run_record = _run_record(job, task.plan, folder)
    # The main thread may wait for Ray for ever, so another thread notices that Ray has died.
    watch = RayWatch(task.site.require_ray, partial(_exit_now, journal))
    try:
        # Manifest and plan are written first, so that the folder of a failed run shows what was
        # tried.
        folder.write_manifest(manifest_text(job))
        folder.write_plan(task.plan)
        journal.begin(run_record)
        note_checkpoint_mismatch(store, has_run, journal)
        for notice in task.notices:
            journal.notice(notice)
        # Notices come first, because opening Ray may take a minute, or fail.
        _open(task, journal)
        watch.start()
        settings = worker_settings(folder, task.python_path, task.faults)
        if task.faults:
            announce(settings.logs, DRIVER)
        _run_to_end(task, settings, journal, saves, run_record)
        _note_missed_faults(task, settings, journal)
        journal.end(Outcome.SUCCEEDED)
        return journal.early_stop
    except RunFolderLost as error:
        trackers.close()  # nothing else can be written
        raise RunFolderLost(f"{error}; {remaining_checkpoints_text(store)}") from error
    except BaseException as error:
        with suppress(CannotRecord):  # the error itself matters more
            journal.end(*classify_ending(error))
        raise
    finally:
        journal.close()
        # Polling stops before Ray does; else Ray's end would count as a failure.
        watch.stop_polling()
        task.site.close()
        watch.close()


def _run_to_end(
    task: TrainingTask,
    settings: WorkerSettings,
    journal: Journal,
    saves: CheckpointManager,
    run_record: RunRecord,
) -> None:
    """Run workers, and restart them as the failure policy allows, until training has ended."""
    start = partial(JobRun, task.job, task.plan, settings, journal, saves, task.stop, task.site)
    finished = supervise(
        partial(_run_workers, start, task.folder.model),
        saves,
        Restarts(task.job.spec.failure_policy),
        journal,
        lambda: journal.begin(replace(run_record, workers_started=time.time())),
        task.stop,
    )
    if not finished:
        # Supervision ended before the job did: a signal has stopped it after a step.
        raise KeyboardInterrupt


def _note_missed_faults(task: TrainingTask, settings: WorkerSettings, journal: Journal) -> None:
    for fault in pending_faults(task.faults, settings.logs):
        journal.notice(
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


def manifest_text(job: RLHFJob) -> str:
    """The manifest in force with overrides, without defaults."""
    # Defaults stay out: a later version may have others, and the file is compared on resume.
    document = job.model_dump(mode="json", by_alias=True, exclude_unset=True)
    return dump_yaml(document)


def classify_ending(error: BaseException) -> tuple[Outcome, str, str]:
    """Outcome, reason and message of a run that an error ended."""
    if isinstance(error, KeyboardInterrupt):
        return Outcome.INTERRUPTED, "Interrupted", "stopped by Ctrl-C or SIGTERM"
    if isinstance(error, RlhfError):
        return Outcome.FAILED, error.reason, str(error)
    return Outcome.FAILED, ExitCode.BUG.name, f"{type(error).__name__}: {error}"


def _exit_now(journal: Journal, error: RayFailed) -> NoReturn:
    """End the process at once, from the thread that watches Ray."""
    # The main thread would not end: Ray is lost, and with it what it waits for.
    with suppress(Exception):  # the error itself matters more
        journal.end(*classify_ending(error))
    with suppress(Exception):
        journal.close()
    # Ray may die after the last record of a successful job, while its processes end.
    code = ExitCode.DONE if journal.outcome is Outcome.SUCCEEDED else print_error(error)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    # sys.exit would end this thread only.
    os._exit(code)


def _open(task: TrainingTask, journal: Journal) -> None:
    begin = time.monotonic()
    task.site.open(task.plan.pools)
    install_signal_handlers(task.stop)  # Ray has replaced them by its own
    task.stop.raise_if_requested()
    journal.started("ray", time.monotonic() - begin)


def worker_settings(
    folder: RunFolder, python_path: tuple[str, ...], faults: tuple[Fault, ...] = ()
) -> WorkerSettings:
    """The settings of workers whose models and logs are in a folder."""
    return WorkerSettings(
        models=folder.path / "models",
        logs=folder.path / "logs",
        python_path=python_path,
        timeout_seconds=COLLECTIVE_SECONDS,
        faults=faults,
        require_folder=folder.require_intact,
    )


def _run_workers(start: Callable[[], JobRun], model: Path, checkpoint: Checkpoint | None) -> bool:
    """Start workers and run them to their end; return True if the job has finished."""
    run = start()
    try:
        finished = run.run(model, checkpoint)
    except BaseException:
        # An orderly close would wait for calls that may never return.
        run.kill()
        raise
    run.close()
    return finished


def _run_record(job: RLHFJob, plan: Plan, folder: RunFolder) -> RunRecord:
    warm_start = job.spec.schedule.warm_start
    return RunRecord(
        job=job.name,
        algorithm=job.spec.algorithm.type.value,
        devices=devices_text(plan),
        output=str(folder.path),
        total_steps=job.spec.schedule.steps,
        started=time.time(),
        workers_started=time.time(),
        warm_start_steps=0 if warm_start is None else warm_start.max_steps,
        command=shlex.join(["rlhf", *sys.argv[1:]]),
    )
