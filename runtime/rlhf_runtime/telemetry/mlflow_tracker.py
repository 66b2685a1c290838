"""Sends metrics and samples to MLflow."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping

from rlhf_api.spec.telemetry import MlflowSpec
from rlhf_runtime.telemetry.errors import TrackerUnavailable
from rlhf_runtime.telemetry.samples import SAMPLES, SampleTable
from rlhf_runtime.telemetry.tracked_run import TrackedRun
from rlhf_runtime.telemetry.tracker_library import import_tracker_library

# MLflow's limits: characters of a parameter's value, and parameters of a request.
MAX_SETTING = 6000
MAX_SETTINGS = 100


class MlflowTracker:
    """Logs to an MLflow server or folder."""

    def __init__(self, spec: MlflowSpec, run: TrackedRun) -> None:
        """Start a run, or go on with that of an earlier start.

        Raises:
            TrackerMissing: the library is not installed.
            TrackerUnavailable: it did not start the run.
        """
        if "://" not in spec.tracking_uri:
            # MLflow wants its users' consent to folders; a folder in the manifest is that consent.
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        tracking = import_tracker_library("mlflow.tracking", "mlflow")
        errors = import_tracker_library("mlflow.exceptions", "mlflow")
        self._entities = import_tracker_library("mlflow.entities", "mlflow")
        self._sends_samples = spec.samples
        project = f"mlflow/{spec.tracking_uri}/{spec.experiment}"
        try:
            self._client = tracking.MlflowClient(tracking_uri=spec.tracking_uri)
            self._run = self._continued(run.known_id(project), errors.MlflowException)
            if self._run is None:
                self._run = self._begin(spec.experiment, run)
                run.remember_id(project, self._run)
        except errors.MlflowException as error:
            raise TrackerUnavailable(
                f"MLflow at {spec.tracking_uri} did not start a run: {error}; "
                "correct telemetry.mlflow or remove it to train without it"
            ) from error

    def _continued(self, run_id: str | None, missing: type[Exception]) -> str | None:
        """Return the id of an earlier start's run, which goes on; None without one."""
        if run_id is None:
            return None
        try:
            self._client.update_run(run_id, status="RUNNING")
        except missing:
            return None  # somebody deleted it
        return run_id

    def _begin(self, experiment: str, run: TrackedRun) -> str:
        existing = self._client.get_experiment_by_name(experiment)
        experiment_id = (
            existing.experiment_id if existing else self._client.create_experiment(experiment)
        )
        run_id: str = self._client.create_run(experiment_id, run_name=run.name).info.run_id
        params = [
            self._entities.Param(name, str(value)[:MAX_SETTING])
            for name, value in run.settings.items()
        ]
        for first in range(0, len(params), MAX_SETTINGS):
            self._client.log_batch(run_id, params=params[first : first + MAX_SETTINGS])
        return run_id

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Send the finite metrics of a step in one request."""
        # MLflow counts milliseconds; its servers refuse NaN and infinities.
        now = int(time.time() * 1000)
        batch = [
            self._entities.Metric(name, value, now, step)
            for name, value in metrics.items()
            if math.isfinite(value)
        ]
        self._client.log_batch(self._run, metrics=batch)

    def log_samples(self, step: int, table: SampleTable) -> None:
        """Send a table as an artifact, in the form of MLflow's tables."""
        if not self._sends_samples:
            return
        # `log_table` would append to the table of an evaluation that a restart repeats.
        content = {"columns": list(table.columns), "data": [list(row) for row in table.rows]}
        self._client.log_dict(self._run, content, f"{SAMPLES}-{step:06d}.json")

    def close(self) -> None:
        """Mark the run as finished."""
        self._client.set_terminated(self._run, "FINISHED")
