"""Our workers and driver in the benchmark's own process: they run blocks of steps as a job does."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from io import StringIO
from pathlib import Path

from rlhf_api.plan import GraphName, Plan
from rlhf_api.spec.job import RLHFJob
from rlhf_flow.jobs.job_graphs import reward_roles, trace_algorithms
from rlhf_planner.simulation.event_graph import PASSES_AHEAD
from rlhf_runtime.controller.optimizers import training_settings
from rlhf_runtime.controller.pass_records import step_record
from rlhf_runtime.controller.steps import PassRunner, SubmittedPass
from rlhf_runtime.controller.training_passes import keep_ahead
from rlhf_runtime.controller.worker_sites import OneMachine, Site
from rlhf_runtime.controller.workers import Workers, WorkerSettings
from rlhf_runtime.forkserver.standby import choose_fork_server
from rlhf_runtime.python_path import NO_CODE, PythonPath
from rlhf_runtime.telemetry.plain_progress import PlainProgress
from rlhf_runtime.telemetry.records import StepRecord
from rlhf_runtime.telemetry.run_folder import RunFolder
from rlhf_runtime.telemetry.run_recorder import RunRecorder
from rlhf_runtime.telemetry.tracked_run import TrackedRun
from rlhf_runtime.telemetry.trackers import make_trackers


class OurRun:
    """Workers and driver of a job."""

    def __init__(
        self, job: RLHFJob, plan: Plan, settings: WorkerSettings, recorder: RunRecorder, site: Site
    ) -> None:
        self._recorder = recorder
        traced = trace_algorithms(job, plan.device)[GraphName.STEP]
        self._algorithm = traced.algorithm
        self._rewards = reward_roles(traced.graph)
        self._workers = Workers(job, plan, settings, site)
        self._workers.build(recorder.started)
        rates = training_settings(job.spec, plan.policy, traced.graph)
        self._workers.call_role(plan.policy, "use_optimizer", plan.policy, rates)
        self._stepper = PassRunner(self._workers, {GraphName.STEP: traced.graph})
        self._step = 0
        self.records: list[StepRecord] = []

    def block(self, count: int) -> float:
        """Run `count` steps; returns the mean seconds of one.

        Measured from the first submitted call to the last written record.
        """
        begin = time.perf_counter()
        keep_ahead(map(self._submit, range(count)), self._finish, PASSES_AHEAD)
        return (time.perf_counter() - begin) / count

    def close(self) -> None:
        """End the workers."""
        self._workers.close()

    def _submit(self, _number: int) -> tuple[int, SubmittedPass]:
        self._step += 1
        return self._step, self._stepper.train(self._algorithm, self._step)

    def _finish(self, numbered: tuple[int, SubmittedPass]) -> None:
        step, submitted = numbered
        record = step_record(step, self._stepper.wait(submitted), self._rewards)
        self._recorder.step(record)
        self.records.append(record)


@contextmanager
def our_run(
    job: RLHFJob, plan: Plan, folder: Path, python_path: PythonPath = NO_CODE
) -> Iterator[OurRun]:
    """Start our side, and end it.

    Args:
        job: to run.
        plan: of the job.
        folder: for the run's files.
        python_path: the job's own code.
    """
    run_folder = RunFolder(folder / "run")
    trackers = make_trackers(job.spec.telemetry, TrackedRun.of(job, run_folder.path))
    recorder = RunRecorder(run_folder, PlainProgress(StringIO()), trackers)
    settings = WorkerSettings(
        models=folder / "models",
        logs=folder / "logs",
        python_path=python_path,
        threads_per_rank=len(os.sched_getaffinity(0)),
        timeout_seconds=600.0,
    )
    fork_server, _ = choose_fork_server(plan.device, plan.standby)
    site = OneMachine(fork_server)
    try:
        site.open(plan.pools)
        ours = OurRun(job, plan, settings, recorder, site)
        try:
            yield ours
        finally:
            ours.close()
    finally:
        site.close()
        fork_server.close()
        recorder.close()
