"""Sends metrics and samples to Weights & Biases."""

from __future__ import annotations

import os
from collections.abc import Mapping
from uuid import uuid4

from rlhf_api.spec.telemetry import WandbSpec
from rlhf_runtime.telemetry.errors import TrackerUnavailable
from rlhf_runtime.telemetry.samples import SAMPLES, SampleTable
from rlhf_runtime.telemetry.tracked_run import TrackedRun
from rlhf_runtime.telemetry.tracker_library import import_tracker_library

STEP = "step"
"""Metric that curves are drawn over."""


class WandbTracker:
    """Logs to Weights & Biases; WANDB_MODE=offline keeps the run in the run's folder."""

    def __init__(self, spec: WandbSpec, run: TrackedRun) -> None:
        """Start a run, or go on with that of an earlier start.

        Raises:
            TrackerMissing: the library is not installed.
            TrackerUnavailable: it has no key, or did not start the run.
        """
        self._wandb = import_tracker_library("wandb", "wandb")
        self._sends_samples = spec.samples
        if _needs_key() and not self._wandb.api.api_key:
            raise TrackerUnavailable(
                "Weights & Biases has no API key: set WANDB_API_KEY or run `wandb login`, "
                "or set WANDB_MODE=offline, or remove telemetry.wandb"
            )
        run.folder.mkdir(parents=True, exist_ok=True)
        # Its messages would interrupt the progress on the terminal.
        settings = self._wandb.Settings(silent=True, console="off")
        project = f"wandb/{spec.entity or ''}/{spec.project}"
        run_id = run.known_id(project) or uuid4().hex[:8]
        try:
            self._run = self._wandb.init(
                project=spec.project,
                entity=spec.entity,
                name=run.name,
                dir=str(run.folder),
                settings=settings,
                id=run_id,
                resume="allow",
            )
            # A resumed job may have more steps.
            self._run.config.update(dict(run.settings), allow_val_change=True)
            self._run.define_metric("*", step_metric=STEP)
        except self._wandb.Error as error:
            raise TrackerUnavailable(
                f"Weights & Biases did not start project {spec.project}: {error}; "
                "set WANDB_MODE=offline or remove telemetry.wandb to train without it"
            ) from error
        run.remember_id(project, run_id)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Send the metrics of a step."""
        # Not as the run's own step: Weights & Biases drops what is logged for an earlier one, such
        # as a step that is trained again after a restart.
        self._run.log({**metrics, STEP: step})

    def log_samples(self, step: int, table: SampleTable) -> None:
        """Send a table."""
        if not self._sends_samples:
            return
        data = [list(row) for row in table.rows]
        shown = self._wandb.Table(columns=list(table.columns), data=data)
        self._run.log({SAMPLES: shown, STEP: step})

    def close(self) -> None:
        """End the run and its helper process."""
        self._run.finish()
        # `finish` leaves the helper process running.
        self._wandb.teardown()


def _needs_key() -> bool:
    return os.environ.get("WANDB_MODE", "online") in ("online", "shared")
