"""The life of a job from its plan to its end, wherever its workers live."""

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

import yaml

from rlhf_api.changes import spec_document
from rlhf_api.errors import RlhfError
from rlhf_api.exits import ExitCode
from rlhf_api.plan import Plan
from rlhf_api.spec.job import RLHFJob
from rlhf_cli.guard import tell
from rlhf_cli.planned import devices_text
from rlhf_cli.resume import tell_where_it_begins
from rlhf_cli.stopping import take_over_signals
from rlhf_runtime.checkpoint.store import Checkpoint, CheckpointStore
from rlhf_runtime.controller.job_run import JobRun
from rlhf_runtime.controller.ray_watch import RayWatch
from rlhf_runtime.controller.restarts import Restarts
from rlhf_runtime.controller.saves import CheckpointManager
from rlhf_runtime.controller.site import Site
from rlhf_runtime.controller.stop import StopRequest
from rlhf_runtime.controller.supervise import supervise
from rlhf_runtime.controller.workers import WorkerSettings
from rlhf_runtime.errors import RayFailed, StorageFailed
from rlhf_runtime.faults import DRIVER, Fault, announce, never_struck
from rlhf_runtime.telemetry.errors import CannotRecord, RunFolderGone
from rlhf_runtime.telemetry.journal import Journal
from rlhf_runtime.telemetry.progress import Progress
from rlhf_runtime.telemetry.records import Outcome, RunRecord
from rlhf_runtime.telemetry.run_folder import RunFolder
from rlhf_runtime.telemetry.trackers import make_trackers

COLLECTIVE_SECONDS = 86400.0
"""Longest wait for another rank inside a collective: longer than any call, since ranks wait there
for others that still generate. Who hangs is noticed by failurePolicy.progressDeadlineSeconds, who
dies by Ray."""


@dataclass(frozen=True)
class Task:
    """A job that has passed every check, and all that it needs."""

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
    """What a person should read before it starts."""


def train(task: Task) -> None:
    """Train until the job's end, and write down how it ended.

    Raises:
        RlhfError: the failure after which there is no restart.
        KeyboardInterrupt: somebody wanted it to stop; what was reached is saved.
    """
    job, folder, store = task.job, task.folder, task.store
    trackers = make_trackers(job.spec.telemetry, job.name, folder.path)
    journal = Journal(folder, task.progress, trackers)
    saves = CheckpointManager(
        store, job.spec.checkpoint, spec_document(job.spec), journal, task.plan
    )
    is_known = folder.metrics.exists()
    begun = _run_record(job, task.plan, folder)
    watch = RayWatch(task.site.require_ray, partial(_end_at_once, journal))
    try:
        folder.write_manifest(manifest_text(job))
        folder.write_plan(task.plan)
        journal.begin(begun)
        tell_where_it_begins(store, is_known, journal)
        for notice in task.notices:
            journal.notice(notice)
        _open(task, journal)
        watch.start()
        settings = _worker_settings(task)
        if task.faults:
            announce(settings.logs, DRIVER)
        start = partial(JobRun, job, task.plan, settings, journal, saves, task.stop, task.site)
        finished = supervise(
            partial(_incarnation, start, folder.model),
            saves,
            Restarts(job.spec.failure_policy),
            journal,
            lambda: journal.begin(replace(begun, workers_started=time.time())),
            task.stop,
        )
        if not finished:
            raise KeyboardInterrupt
        for fault in never_struck(task.faults, settings.logs):
            journal.notice(
                f"--inject {fault.name} never struck: nobody entered {fault.phase.value} in step "
                f"{fault.step}"
            )
        journal.end(Outcome.SUCCEEDED)
    except RunFolderGone as error:
        trackers.close()  # nothing else can be written
        raise RunFolderGone(f"{error}; {what_is_kept(store)}") from error
    except BaseException as error:
        with suppress(CannotRecord):  # the error itself matters more
            journal.end(*ending_of(error))
        raise
    finally:
        journal.close()
        watch.stop_polling()
        task.site.close()
        watch.close()


def what_is_kept(store: CheckpointStore) -> str:
    """What is left of a job whose folder is gone, and what the same command makes of it."""
    try:
        steps = store.steps()
    except StorageFailed as error:
        return f"whether there are checkpoints is not known ({error})"
    if not steps:
        return f"no checkpoint is in {store.address}: the same command begins at the job's start"
    return (
        f"checkpoints up to step {steps[0]} are in {store.address}: the same command goes on from "
        "there"
    )


def manifest_text(job: RLHFJob) -> str:
    """The manifest in force, overrides included, without what is left to defaults."""
    document = job.model_dump(mode="json", by_alias=True, exclude_unset=True)
    return yaml.safe_dump(document, sort_keys=False)


def ending_of(error: BaseException) -> tuple[Outcome, str, str]:
    """How a run ends with an error: outcome, reason and message."""
    if isinstance(error, KeyboardInterrupt):
        return Outcome.INTERRUPTED, "Interrupted", "stopped by Ctrl-C or SIGTERM"
    if isinstance(error, RlhfError):
        return Outcome.FAILED, error.reason, str(error)
    return Outcome.FAILED, ExitCode.BUG.name, f"{type(error).__name__}: {error}"


def _end_at_once(journal: Journal, error: RayFailed) -> NoReturn:
    """End the process, whose main thread does not end: Ray has gone, and what Ray had started."""
    with suppress(Exception):  # the error itself matters more
        journal.end(*ending_of(error))
    with suppress(Exception):
        journal.close()
    code = ExitCode.DONE if journal.outcome is Outcome.SUCCEEDED else tell(error)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)


def _open(task: Task, journal: Journal) -> None:
    begin = time.monotonic()
    task.site.open(task.plan.pools)
    take_over_signals(task.stop)  # Ray has put a handler of its own in its place
    task.stop.raise_if_requested()
    journal.started("ray", time.monotonic() - begin)


def _worker_settings(task: Task) -> WorkerSettings:
    return WorkerSettings(
        models=task.folder.path / "models",
        logs=task.folder.path / "logs",
        python_path=task.python_path,
        timeout_seconds=COLLECTIVE_SECONDS,
        faults=task.faults,
        require_folder=task.folder.require_there,
    )


def _incarnation(start: Callable[[], JobRun], model: Path, checkpoint: Checkpoint | None) -> bool:
    """One set of workers from its start to its end; whether the job came to its own."""
    run = start()
    try:
        finished = run.run(model, checkpoint)
    except BaseException:
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
