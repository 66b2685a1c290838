"""Trackers of metrics and samples besides the run's folder: TensorBoard files, Weights & Biases,
MLflow.

Each tracker imports its own library when it is created.
"""

from __future__ import annotations

import importlib.util
import logging
import math
import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from textwrap import indent
from types import ModuleType
from typing import Any, Protocol

from rlhf_api.spec.telemetry import MlflowSpec, TelemetrySpec, WandbSpec
from rlhf_runtime.telemetry.appended_file import AppendedFile
from rlhf_runtime.telemetry.errors import TrackerMissing, TrackerUnavailable
from rlhf_runtime.telemetry.samples import ResponseSample, SampleTable, sample_table

LOGGER = logging.getLogger(__name__)


SAMPLES = "evaluation/samples"
"""Name of the tables of samples."""


class Tracker(Protocol):
    """Receives metrics by step, and samples of evaluations."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Record metrics of a step."""

    def log_samples(self, step: int, table: SampleTable) -> None:
        """Record samples of the evaluation after a step, if the manifest wants them here."""

    def close(self) -> None:
        """Flush, and release processes and files."""


class TensorBoardTracker:
    """Writes TensorBoard event files into a folder."""

    def __init__(self, folder: Path) -> None:
        # torch's SummaryWriter, or TensorFlow, would cost the driver hundreds of megabytes.
        # TensorBoard's EventFileWriter writes in a thread that prints its own errors.
        records = _import("tensorboard.summary.writer.record_writer", "runtime")
        self._proto = _import("tensorboard.compat.proto.event_pb2", "runtime")
        self._summary = _import("tensorboard.compat.proto.summary_pb2", "runtime")
        self._tensor = _import("tensorboard.compat.proto.tensor_pb2", "runtime")
        self._shape = _import("tensorboard.compat.proto.tensor_shape_pb2", "runtime")
        self._types = _import("tensorboard.compat.proto.types_pb2", "runtime")
        self._text = _import("tensorboard.plugins.text.metadata", "runtime")
        self._make_writer = records.RecordWriter
        self._folder = folder
        # Created with the first event. None: there was none.
        self._writer: Any = None

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write one event with a scalar for each metric."""
        values = [
            self._summary.Summary.Value(tag=name, simple_value=value)
            for name, value in metrics.items()
        ]
        self._write(step=step, summary=self._summary.Summary(value=values))

    def log_samples(self, step: int, table: SampleTable) -> None:
        """Write one event with a table of texts, the names of columns first."""
        cells = [*table.columns, *(_cell(value) for row in table.rows for value in row)]
        size = self._shape.TensorShapeProto.Dim
        tensor = self._tensor.TensorProto(
            dtype=self._types.DT_STRING,
            string_val=[cell.encode() for cell in cells],
            tensor_shape=self._shape.TensorShapeProto(
                dim=[size(size=1 + len(table.rows)), size(size=len(table.columns))]
            ),
        )
        metadata = self._text.create_summary_metadata(SAMPLES, "")
        value = self._summary.Summary.Value(tag=SAMPLES, metadata=metadata, tensor=tensor)
        self._write(step=step, summary=self._summary.Summary(value=[value]))

    def _write(self, **fields: Any) -> None:
        if self._writer is None:
            self._folder.mkdir(parents=True, exist_ok=True)
            name = f"events.out.tfevents.{time.time_ns()}.{socket.gethostname()}.{os.getpid()}"
            writer = self._make_writer(AppendedFile(self._folder / name))
            writer.write(self._event(file_version="brain.Event:2"))
            self._writer = writer
        self._writer.write(self._event(**fields))

    def _event(self, **fields: Any) -> bytes:
        event: bytes = self._proto.Event(wall_time=time.time(), **fields).SerializeToString()
        return event

    def close(self) -> None:
        """Do nothing: every event is on the disk at once."""


class WandbTracker:
    """Logs to Weights & Biases; WANDB_MODE=offline keeps the run in `folder`."""

    def __init__(self, spec: WandbSpec, name: str, folder: Path) -> None:
        self._wandb = _import("wandb", "wandb")
        self._sends_samples = spec.samples
        if _wandb_needs_key() and not self._wandb.api.api_key:
            raise TrackerUnavailable(
                "Weights & Biases has no API key: set WANDB_API_KEY or run `wandb login`, "
                "or set WANDB_MODE=offline, or remove telemetry.wandb"
            )
        folder.mkdir(parents=True, exist_ok=True)
        # Its messages would interrupt the progress on the terminal.
        settings = self._wandb.Settings(silent=True, console="off")
        try:
            self._run = self._wandb.init(
                project=spec.project,
                entity=spec.entity,
                name=name,
                dir=str(folder),
                settings=settings,
            )
        except self._wandb.Error as error:
            raise TrackerUnavailable(
                f"Weights & Biases did not start project {spec.project}: {error}; "
                "set WANDB_MODE=offline or remove telemetry.wandb to train without it"
            ) from error

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Send the metrics of a step."""
        self._run.log(dict(metrics), step=step)

    def log_samples(self, step: int, table: SampleTable) -> None:
        """Send a table."""
        if not self._sends_samples:
            return
        data = [list(row) for row in table.rows]
        shown = self._wandb.Table(columns=list(table.columns), data=data)
        self._run.log({SAMPLES: shown}, step=step)

    def close(self) -> None:
        """End the run and its helper process."""
        self._run.finish()
        # `finish` leaves the helper process running.
        self._wandb.teardown()


class MlflowTracker:
    """Logs to an MLflow server or folder."""

    def __init__(self, spec: MlflowSpec, name: str) -> None:
        if "://" not in spec.tracking_uri:
            # MLflow wants its users' consent to folders; a folder in the manifest is that consent.
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        tracking = _import("mlflow.tracking", "mlflow")
        errors = _import("mlflow.exceptions", "mlflow")
        self._metric = _import("mlflow.entities", "mlflow").Metric
        self._sends_samples = spec.samples
        try:
            self._client = tracking.MlflowClient(tracking_uri=spec.tracking_uri)
            existing = self._client.get_experiment_by_name(spec.experiment)
            experiment = (
                existing.experiment_id
                if existing
                else self._client.create_experiment(spec.experiment)
            )
            self._run = self._client.create_run(experiment, run_name=name).info.run_id
        except errors.MlflowException as error:
            raise TrackerUnavailable(
                f"MLflow at {spec.tracking_uri} did not start a run: {error}; "
                "correct telemetry.mlflow or remove it to train without it"
            ) from error

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Send the finite metrics of a step in one request."""
        # MLflow counts milliseconds; its servers refuse NaN and infinities.
        now = int(time.time() * 1000)
        batch = [
            self._metric(name, value, now, step)
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


# Builds each tracker from the spec, the job's name and the run's folder.
TRACKERS: dict[str, Callable[[TelemetrySpec, str, Path], Tracker | None]] = {
    "tensorboard": lambda spec, _, folder: (
        TensorBoardTracker(folder / "tensorboard") if spec.tensorboard else None
    ),
    "wandb": lambda spec, name, folder: (
        WandbTracker(spec.wandb, name, folder) if spec.wandb else None
    ),
    "mlflow": lambda spec, name, _: MlflowTracker(spec.mlflow, name) if spec.mlflow else None,
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


def make_trackers(spec: TelemetrySpec, name: str, folder: Path) -> TrackerGroup:
    """Create the trackers of a manifest.

    Args:
        spec: The manifest's telemetry section.
        name: The job's name, shown by the trackers.
        folder: The run's folder.

    Raises:
        TrackerMissing: a tracker's library is not installed.
        TrackerUnavailable: a tracker could not start its run.
    """
    trackers: dict[str, Tracker] = {}
    try:
        for kind, make in TRACKERS.items():
            tracker = make(spec, name, folder)
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
            raise _missing(library, library, library)


def _cell(value: str | float | None) -> str:
    """A cell of TensorBoard's table, read as Markdown, in which indented texts stay as they are."""
    if not isinstance(value, str):
        return "" if value is None else f"{value:.5g}"
    return indent(value, "    ", lambda line: True)


def _wandb_needs_key() -> bool:
    return os.environ.get("WANDB_MODE", "online") in ("online", "shared")


def _import(module: str, extra: str) -> Any:
    try:
        loaded: ModuleType = importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise _missing(module.partition(".")[0], str(error.name), extra) from error
    return loaded


def _missing(library: str, module: str, extra: str) -> TrackerMissing:
    return TrackerMissing(
        f"a tracker's library is not installed: got no module {module} for {library}; "
        f"install it with `pip install 'rlhf-operator[{extra}]'` or remove "
        f"telemetry.{library} from the manifest"
    )
