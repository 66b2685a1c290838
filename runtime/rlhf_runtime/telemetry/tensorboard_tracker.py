"""Writes metrics and samples as TensorBoard event files."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from textwrap import indent
from typing import Any

from rlhf_runtime.telemetry.appended_file import AppendedFile
from rlhf_runtime.telemetry.samples import SAMPLES, SampleTable
from rlhf_runtime.telemetry.tracked_run import TrackedRun
from rlhf_runtime.telemetry.tracker_library import import_tracker_library


class TensorBoardTracker:
    """Writes TensorBoard event files into a folder."""

    def __init__(self, run: TrackedRun) -> None:
        # torch's SummaryWriter, or TensorFlow, would cost the driver hundreds of megabytes.
        # TensorBoard's EventFileWriter writes in a thread that prints its own errors.
        records = import_tracker_library("tensorboard.summary.writer.record_writer", "runtime")
        self._proto = import_tracker_library("tensorboard.compat.proto.event_pb2", "runtime")
        self._summary = import_tracker_library("tensorboard.compat.proto.summary_pb2", "runtime")
        self._tensor = import_tracker_library("tensorboard.compat.proto.tensor_pb2", "runtime")
        self._shape = import_tracker_library("tensorboard.compat.proto.tensor_shape_pb2", "runtime")
        self._types = import_tracker_library("tensorboard.compat.proto.types_pb2", "runtime")
        self._hparams = import_tracker_library("tensorboard.plugins.hparams.summary_v2", "runtime")
        self._text = import_tracker_library("tensorboard.plugins.text.metadata", "runtime")
        self._make_writer = records.RecordWriter
        self._folder = run.folder / "tensorboard"
        self._settings = run.settings
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
            writer.write(self._event(summary=self._hparams.hparams_pb(dict(self._settings))))
            self._writer = writer
        self._writer.write(self._event(**fields))

    def _event(self, **fields: Any) -> bytes:
        event: bytes = self._proto.Event(wall_time=time.time(), **fields).SerializeToString()
        return event

    def close(self) -> None:
        """Do nothing: every event is on the disk at once."""


def _cell(value: str | float | None) -> str:
    """A cell of TensorBoard's table, read as Markdown, in which indented texts stay as they are."""
    if not isinstance(value, str):
        return "" if value is None else f"{value:.5g}"
    return indent(value, "    ", lambda line: True)
