"""`rlhf run`: the whole life of a job on this machine."""

from __future__ import annotations

import os
import shlex
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

import yaml

from rlhf_api.errors import ManifestError, RlhfError
from rlhf_api.exits import ExitCode
from rlhf_api.job import RLHFJob
from rlhf_api.plan import Plan
from rlhf_api.problems import Problem
from rlhf_cli.user_code import user_code
from rlhf_cli.validate import jobs_of
from rlhf_flow.planning.make_plan import local_devices, make_plan
from rlhf_runtime.controller.cluster import start_local_ray, stop_local_ray
from rlhf_runtime.controller.job_run import JobRun
from rlhf_runtime.controller.run_lock import locked
from rlhf_runtime.controller.workers import WorkerSettings
from rlhf_runtime.data.rows import find_sources
from rlhf_runtime.errors import UnfinishedRun
from rlhf_runtime.telemetry.journal import Journal
from rlhf_runtime.telemetry.progress import make_progress
from rlhf_runtime.telemetry.records import Outcome, RunRecord
from rlhf_runtime.telemetry.run_folder import RunFolder
from rlhf_runtime.telemetry.trackers import make_trackers

NUM_HOSTS = 2
"""Workers besides the ranks: data and rewards."""
COLLECTIVE_SECONDS = 600.0
"""Longest wait for another rank inside a collective."""
IGNORED = ("resources", "image", "hub", "checkpoint", "managed_by", "priority_class_name")
"""Sections for clusters; `rlhf run` names those that a manifest has and does without them."""


def run_command(
    file: Path,
    output: Path | None,
    devices: int | None,
    steps: int | None,
    seed: int | None,
    overrides: Sequence[str],
    fresh: bool,
) -> None:
    """Check, plan, train, report."""
    changes = list(overrides)
    changes += [] if steps is None else [f"spec.schedule.steps={steps}"]
    changes += [] if seed is None else [f"spec.schedule.seed={seed}"]
    job = _only_job(jobs_of(file, changes), file)
    with user_code(job, file.parent):
        _, plan = make_plan(job, local_devices(devices))
    find_sources(job.spec.data)
    folder = RunFolder(output or Path("rlhf-runs") / job.name)
    signal.signal(signal.SIGTERM, _interrupt)
    with locked(folder.path):
        if not is_new(folder, fresh):
            return
        folder.write_manifest(manifest_text(job))
        folder.write_plan(plan)
        with user_code(job, file.parent) as python_path:
            _train(job, plan, folder, python_path)


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


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def is_new(folder: RunFolder, fresh: bool) -> bool:
    """Whether there is something to do in the folder; `fresh` puts an earlier run aside."""
    if not folder.metrics.exists():
        return True
    if fresh:
        aside = _free_name(folder.path)
        aside.mkdir()
        for entry in folder.path.iterdir():
            if entry.name != ".lock":
                entry.rename(aside / entry.name)
        sys.stderr.write(f"the earlier run was put aside: {aside}\n")
        return True
    records = folder.read()
    if records.end is not None and records.end.outcome is Outcome.SUCCEEDED:
        sys.stderr.write(
            f"already finished: {folder.path}; its report is {folder.report}. "
            "To train again use --fresh (this run is kept aside) or another --output.\n"
        )
        return False
    if not records.steps and not records.warm_start:
        return True  # it ended before it had trained anything
    raise UnfinishedRun(
        f"the folder holds a run that did not finish: got {folder.path}, allowed a new folder; use "
        "--fresh to start over (this run is kept aside), or another --output"
    )


def _free_name(path: Path) -> Path:
    number = 1
    while (aside := path.with_name(f"{path.name}.{number}")).exists():
        number += 1
    return aside


def _train(job: RLHFJob, plan: Plan, folder: RunFolder, python_path: tuple[str, ...]) -> None:
    begin = time.monotonic()
    journal = Journal(
        folder,
        make_progress(sys.stderr),
        make_trackers(job.spec.telemetry, job.name, folder.path),
    )
    try:
        journal.begin(_run_record(job, plan, folder))
        for section in ignored_sections(job):
            journal.notice(f"spec.{section} is for clusters; rlhf run does without it")
        pool = plan.pools[0]
        start_local_ray(pool.num_devices + NUM_HOSTS)
        signal.signal(signal.SIGTERM, _interrupt)  # Ray has put a handler of its own in its place
        journal.started("ray", time.monotonic() - begin)
        settings = WorkerSettings(
            models=folder.path / "models",
            logs=folder.path / "logs",
            python_path=python_path,
            threads_per_rank=max(1, len(os.sched_getaffinity(0)) // pool.num_devices),
            timeout_seconds=COLLECTIVE_SECONDS,
        )
        run = JobRun(job, plan, settings, journal)
        try:
            run.run(folder.model)
        except BaseException:
            run.kill()
            raise
        run.close()
        journal.end(Outcome.SUCCEEDED)
    except KeyboardInterrupt:
        journal.end(Outcome.INTERRUPTED, "Interrupted", "stopped by Ctrl-C or SIGTERM")
        raise
    except RlhfError as error:
        journal.end(Outcome.FAILED, error.reason, str(error))
        raise
    except Exception as error:
        journal.end(Outcome.FAILED, ExitCode.BUG.name, f"{type(error).__name__}: {error}")
        raise
    finally:
        journal.close()
        stop_local_ray()


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
