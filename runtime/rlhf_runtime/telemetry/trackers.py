"""Trackers of metrics and samples besides the run's folder: TensorBoard files, Weights & Biases,
MLflow.

Each tracker imports its own library when it is created.
"""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Protocol

from rlhf_api.spec.telemetry import TelemetrySpec
from rlhf_runtime.telemetry.errors import TrackerMissing, TrackerUnavailable
from rlhf_runtime.telemetry.mlflow_tracker import MlflowTracker
from rlhf_runtime.telemetry.samples import ResponseSample, SampleTable, sample_table
from rlhf_runtime.telemetry.tensorboard_tracker import TensorBoardTracker
from rlhf_runtime.telemetry.tracked_run import TrackedRun
from rlhf_runtime.telemetry.tracker_library import missing_library
from rlhf_runtime.telemetry.wandb_tracker import WandbTracker

LOGGER = logging.getLogger(__name__)


class Tracker(Protocol):
    """Receives metrics by step, and samples of evaluations."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Record metrics of a step."""

    def log_samples(self, step: int, table: SampleTable) -> None:
        """Record samples of the evaluation after a step, if the manifest wants them here."""

    def close(self) -> None:
        """Flush, and release processes and files."""


# Builds each tracker of a manifest.
TRACKERS: dict[str, Callable[[TelemetrySpec, TrackedRun], Tracker | None]] = {
    "tensorboard": lambda spec, run: TensorBoardTracker(run) if spec.tensorboard else None,
    "wandb": lambda spec, run: WandbTracker(spec.wandb, run) if spec.wandb else None,
    "mlflow": lambda spec, run: MlflowTracker(spec.mlflow, run) if spec.mlflow else None,
}


class TrackerGroup:
    """Several trackers as one. The first failure of each is logged; training continues."""

    def __init__(self, trackers: Mapping[str, Tracker]) -> None:
        self._trackers = dict(trackers)
        # Failed calls of each tracker so far.
        self.failures: dict[str, int] = {name: 0 for name in self._trackers}

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Give the metrics of a step to every tracker."""
        for name, tracker in self._trackers.items():
            self._guard(name, f"log step {step}", partial(tracker.log, step, metrics))

    def log_samples(self, step: int, samples: Sequence[ResponseSample]) -> None:
        """Give samples of the evaluation after a step to every tracker."""
        table = sample_table(samples)
        for name, tracker in self._trackers.items():
            action = f"log samples of step {step}"
            self._guard(name, action, partial(tracker.log_samples, step, table))

    def close(self) -> None:
        """Close every tracker."""
        for name, tracker in self._trackers.items():
            self._guard(name, "close", tracker.close)
        self._trackers.clear()

    def _guard(self, name: str, action: str, call: Callable[[], None]) -> None:
        try:
            call()
        # A foreign library may raise anything, and no dashboard is worth a training run.
        except Exception as error:
            self.failures[name] += 1
            if self.failures[name] == 1:
                LOGGER.warning(
                    "tracker %s could not %s: %s: %s; training goes on, further failures are "
                    "counted silently",
                    name,
                    action,
                    type(error).__name__,
                    error,
                )


def make_trackers(spec: TelemetrySpec, run: TrackedRun) -> TrackerGroup:
    """Create the trackers of a manifest.

    Args:
        spec: The manifest's telemetry section.
        run: The run that they follow.

    Raises:
        TrackerMissing: a tracker's library is not installed.
        TrackerUnavailable: a tracker could not start its run.
    """
    trackers: dict[str, Tracker] = {}
    try:
        for kind, make in TRACKERS.items():
            tracker = make(spec, run)
            if tracker is not None:
                trackers[kind] = tracker
    except (TrackerMissing, TrackerUnavailable):
        # End the runs that were started before the error.
        TrackerGroup(trackers).close()
        raise
    return TrackerGroup(trackers)


def require_installed(spec: TelemetrySpec) -> None:
    """Check that the libraries of trackers are installed, without importing them.

    Raises:
        TrackerMissing: one is not.
    """
    for library, section in (("wandb", spec.wandb), ("mlflow", spec.mlflow)):
        if section is not None and importlib.util.find_spec(library) is None:
            raise missing_library(library, library, library)
