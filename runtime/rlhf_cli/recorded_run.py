"""What a run with workers has around it: a folder that records it, Ray, and an end in any case."""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import NoReturn

from rlhf_api.errors import RlhfError
from rlhf_api.exits import ExitCode
from rlhf_api.plan import Plan
from rlhf_api.spec.job import RLHFJob
from rlhf_api.yaml_dump import dump_yaml
from rlhf_cli.command_errors import print_error
from rlhf_cli.planning import devices_text
from rlhf_cli.stopping import install_signal_handlers
from rlhf_runtime.controller.ray_watch import RayWatch
from rlhf_runtime.controller.stop import StopRequest
from rlhf_runtime.controller.worker_sites import Site
from rlhf_runtime.controller.workers import WorkerSettings
from rlhf_runtime.errors import RayFailed
from rlhf_runtime.faults import Fault
from rlhf_runtime.journal.settings_digest import code_digest
from rlhf_runtime.python_path import PythonPath
from rlhf_runtime.telemetry.errors import CannotRecord
from rlhf_runtime.telemetry.records import Outcome, RunRecord
from rlhf_runtime.telemetry.run_folder import RunFolder
from rlhf_runtime.telemetry.run_recorder import RunRecorder

# Longer than any call: ranks wait in collectives for others that still generate. A hung rank is
# found by failurePolicy.progressDeadlineSeconds, a dead one by Ray.
COLLECTIVE_SECONDS = 86400.0
"""Timeout of a collective."""


@contextmanager
def recorded_run(
    job: RLHFJob,
    plan: Plan,
    recorder: RunRecorder,
    record: RunRecord,
    site: Site,
    stop: StopRequest,
) -> Iterator[Callable[[], None]]:
    """Record the begin of a run; an error in the body is recorded as its end.

    Args:
        job: the manifest.
        plan: of the job.
        recorder: of the run; the body ends it if all went well.
        record: the begin.
        site: of workers; closed at the end.
        stop: the signals of the user.

    Yields:
        A function that opens the site. Notices come first, because Ray may take a minute, or fail.
    """
    # The main thread may wait for Ray for ever, so another thread notices that Ray has died.
    watch = RayWatch(site.require_ray, partial(_exit_now, recorder))

    def open_site() -> None:
        begin = time.monotonic()
        site.open(plan.pools)
        install_signal_handlers(stop)  # Ray has replaced them by its own
        stop.raise_if_requested()
        recorder.started("ray", time.monotonic() - begin)
        watch.start()

    try:
        # Manifest and plan are written first, so that the folder of a failed run shows what was
        # tried.
        recorder.describe(manifest_text(job), plan)
        recorder.begin(record)
        yield open_site
    except BaseException as error:
        with suppress(CannotRecord):  # the error itself matters more
            recorder.end(*classify_ending(error))
        raise
    finally:
        recorder.close()
        # Polling stops before Ray does; else Ray's end would count as a failure.
        watch.stop_polling()
        site.close()
        watch.close()


def run_record(job: RLHFJob, plan: Plan, folder: RunFolder, python_path: PythonPath) -> RunRecord:
    """The begin of a run by this command."""
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
        code=code_digest(python_path),
        packages=() if python_path.packages is None else python_path.packages.names,
    )


def manifest_text(job: RLHFJob) -> str:
    """The manifest in force with overrides, without defaults."""
    # Defaults stay out: a later version may have others, and the file is compared on resume.
    document = job.model_dump(mode="json", by_alias=True, exclude_unset=True)
    return dump_yaml(document)


def worker_settings(
    folder: RunFolder, python_path: PythonPath, faults: tuple[Fault, ...] = ()
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


def classify_ending(error: BaseException) -> tuple[Outcome, str, str]:
    """Outcome, reason and message of a run that an error ended."""
    if isinstance(error, KeyboardInterrupt):
        return Outcome.INTERRUPTED, "Interrupted", "stopped by Ctrl-C or SIGTERM"
    if isinstance(error, RlhfError):
        return Outcome.FAILED, error.reason, str(error)
    return Outcome.FAILED, ExitCode.BUG.name, f"{type(error).__name__}: {error}"


def _exit_now(recorder: RunRecorder, error: RayFailed) -> NoReturn:
    """End the process at once, from the thread that watches Ray."""
    # The main thread would not end: Ray is lost, and with it what it waits for.
    with suppress(Exception):  # the error itself matters more
        recorder.end(*classify_ending(error))
    with suppress(Exception):
        recorder.close()
    # Ray may die after the last record of a successful job, while its processes end.
    code = ExitCode.DONE if recorder.outcome is Outcome.SUCCEEDED else print_error(error)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    # sys.exit would end this thread only.
    os._exit(code)
