"""`rlhf run`: the whole life of a job on this machine."""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import yaml

from rlhf_api.changes import document_of
from rlhf_api.errors import ManifestError, RlhfError
from rlhf_api.exits import ExitCode
from rlhf_api.job import RLHFJob
from rlhf_api.plan import Plan
from rlhf_api.problems import Problem
from rlhf_cli.resume import check_changes, has_work, open_store, tell_where_it_begins
from rlhf_cli.stopping import take_over_signals
from rlhf_cli.user_code import user_code
from rlhf_cli.validate import jobs_of
from rlhf_flow.planning.make_plan import local_devices, make_plan
from rlhf_runtime.checkpoint.store import Checkpoint, CheckpointStore
from rlhf_runtime.controller.cluster import start_local_ray, stop_local_ray
from rlhf_runtime.controller.job_run import JobRun
from rlhf_runtime.controller.restarts import Restarts
from rlhf_runtime.controller.run_lock import locked
from rlhf_runtime.controller.saves import Saves
from rlhf_runtime.controller.stop import StopRequest
from rlhf_runtime.controller.supervise import supervise
from rlhf_runtime.controller.workers import WorkerSettings
from rlhf_runtime.data.rows import find_sources
from rlhf_runtime.faults import (
    DRIVER,
    Fault,
    announce,
    never_struck,
    parse_fault,
    require_targets,
)
from rlhf_runtime.telemetry.errors import CannotRecord
from rlhf_runtime.telemetry.journal import Journal
from rlhf_runtime.telemetry.progress import make_progress
from rlhf_runtime.telemetry.records import Outcome, RunRecord
from rlhf_runtime.telemetry.run_folder import RunFolder
from rlhf_runtime.telemetry.trackers import make_trackers

NUM_HOSTS = 2
"""Workers besides the ranks: data and rewards."""
COLLECTIVE_SECONDS = 600.0
"""Longest wait for another rank inside a collective."""
IGNORED = (
    "resources",
    "image",
    "hub",
    "managed_by",
    "priority_class_name",
    "suspend",
    "active_deadline_seconds",
    "start_deadline_seconds",
    "ttl_seconds_after_finished",
)
"""Sections for clusters; `rlhf run` names those that a manifest has and does without them."""


def run_command(
    file: Path,
    output: Path | None,
    devices: int | None,
    steps: int | None,
    seed: int | None,
    overrides: Sequence[str],
    fresh: bool,
    inject: Sequence[str] = (),
) -> None:
    """Check, plan, train, report."""
    changes = list(overrides)
    changes += [] if steps is None else [f"spec.schedule.steps={steps}"]
    changes += [] if seed is None else [f"spec.schedule.seed={seed}"]
    faults = tuple(map(parse_fault, inject))
    job = _only_job(jobs_of(file, changes), file)
    with user_code(job, file.parent):
        _, plan = make_plan(job, local_devices(devices))
    find_sources(job.spec.data)
    require_targets(faults, plan.pools[0].num_devices)
    folder = RunFolder(output or Path("rlhf-runs") / job.name)
    stop = StopRequest()
    take_over_signals(stop)
    with locked(folder.path):
        store = open_store(job, folder, fresh)
        if not has_work(folder, job, fresh):
            return
        check_changes(job, folder, store)
        with user_code(job, file.parent) as python_path:
            _train(job, plan, folder, store, python_path, stop, faults)


def _only_job(jobs: Sequence[RLHFJob], file: Path) -> RLHFJob:
    if len(jobs) != 1:
        names = ", ".join(job.name for job in jobs)
        raise ManifestError(
            [
                Problem(
                    (),
                    "rlhf run trains one job at a time",
                    got=f"{len(jobs)} jobs ({names})",
                    allowed="a file with one",
                    do="put each job in a file of its own",
                    file=str(file),
                )
            ]
        )
    return jobs[0]


def manifest_text(job: RLHFJob) -> str:
    """The manifest in force, overrides included, without what is left to defaults."""
    document = job.model_dump(mode="json", by_alias=True, exclude_unset=True)
    return yaml.safe_dump(document, sort_keys=False)


def _train(
    job: RLHFJob,
    plan: Plan,
    folder: RunFolder,
    store: CheckpointStore,
    python_path: tuple[str, ...],
    stop: StopRequest,
    faults: tuple[Fault, ...],
) -> None:
    journal = Journal(
        folder,
        make_progress(sys.stderr),
        make_trackers(job.spec.telemetry, job.name, folder.path),
    )
    saves = Saves(store, job.spec.checkpoint, document_of(job.spec), journal)
    is_known = folder.metrics.exists()
    begun = _run_record(job, plan, folder)
    try:
        folder.write_manifest(manifest_text(job))
        folder.write_plan(plan)
        journal.begin(begun)
        tell_where_it_begins(store, is_known, journal)
        for section in ignored_sections(job):
            journal.notice(f"spec.{section} is for clusters; rlhf run does without it")
        _start_ray(plan, journal, stop)
        settings = _worker_settings(plan, folder, python_path, faults)
        if faults:
            announce(settings.logs, DRIVER)
        finished = supervise(
            partial(
                _incarnation,
                partial(JobRun, job, plan, settings, journal, saves, stop),
                folder.model,
            ),
            saves,
            Restarts(job.spec.failure_policy),
            journal,
            lambda: journal.begin(begun),
            stop,
        )
        if not finished:
            raise KeyboardInterrupt
        for fault in never_struck(faults, settings.logs):
            journal.notice(
                f"--inject {fault.name} never struck: nobody entered {fault.phase.value} in step "
                f"{fault.step}"
            )
        journal.end(Outcome.SUCCEEDED)
    except BaseException as error:
        with suppress(CannotRecord):  # the error itself matters more
            journal.end(*_ending(error))
        raise
    finally:
        journal.close()
        stop_local_ray()


def _start_ray(plan: Plan, journal: Journal, stop: StopRequest) -> None:
    begin = time.monotonic()
    start_local_ray(plan.pools[0].num_devices + NUM_HOSTS)
    take_over_signals(stop)  # Ray has put a handler of its own in its place
    stop.obey()
    journal.started("ray", time.monotonic() - begin)


def _worker_settings(
    plan: Plan, folder: RunFolder, python_path: tuple[str, ...], faults: tuple[Fault, ...]
) -> WorkerSettings:
    """Where workers write, and their share of this machine's cores."""
    return WorkerSettings(
        models=folder.path / "models",
        logs=folder.path / "logs",
        python_path=python_path,
        threads_per_rank=max(1, len(os.sched_getaffinity(0)) // plan.pools[0].num_devices),
        timeout_seconds=COLLECTIVE_SECONDS,
        faults=faults,
    )


def _ending(error: BaseException) -> tuple[Outcome, str, str]:
    """How a run ends with an error: outcome, reason and message."""
    if isinstance(error, KeyboardInterrupt):
        return Outcome.INTERRUPTED, "Interrupted", "stopped by Ctrl-C or SIGTERM"
    if isinstance(error, RlhfError):
        return Outcome.FAILED, error.reason, str(error)
    return Outcome.FAILED, ExitCode.BUG.name, f"{type(error).__name__}: {error}"


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
    pool, warm_start = plan.pools[0], job.spec.schedule.warm_start
    ranks = f"{pool.num_devices} {pool.device.value} rank{'s' if pool.num_devices > 1 else ''}"
    return RunRecord(
        job=job.name,
        algorithm=job.spec.algorithm.type.value,
        devices=ranks,
        output=str(folder.path),
        total_steps=job.spec.schedule.steps,
        started=time.time(),
        warm_start_steps=0 if warm_start is None else warm_start.max_steps,
        command=shlex.join(["rlhf", *sys.argv[1:]]),
    )


def ignored_sections(job: RLHFJob) -> list[str]:
    """Sections of the manifest that mean nothing on one machine, by their wire names."""
    fields = type(job.spec).model_fields
    return [fields[name].alias or name for name in IGNORED if name in job.spec.model_fields_set]
