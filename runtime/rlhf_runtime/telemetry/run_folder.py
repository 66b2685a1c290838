"""The layout of a run's folder: who writes what where, and how it is read back.

Readers are made for runs that were killed (a cut-off last line) and resumed (a later record of a
step replaces the earlier one).
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rlhf_api.plan import Plan
from rlhf_runtime.telemetry.errors import CannotRecord, NotARun, RunFolderGone
from rlhf_runtime.telemetry.json_lines import FileGone, JsonLinesWriter, parse_line, read_lines
from rlhf_runtime.telemetry.record_json import (
    from_json,
    plain_values,
    spans_from_json,
    spans_to_json,
    to_json,
)
from rlhf_runtime.telemetry.record_log import RecordLog
from rlhf_runtime.telemetry.records import Record, RunRecords, Span, StepRecord


class RunFolder:
    """A run's folder. Creating the object touches nothing; the first record creates the files.

    Raises, in every method that writes:
        CannotRecord: the disk is full, or gone.
        RunFolderGone: the folder, or the records in it, were deleted, moved or replaced since the
            first record was written. Nothing is made anew in its place.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.metrics = path / "metrics.jsonl"
        self.timeline = path / "timeline.jsonl"
        self.summary = path / "summary.json"
        self.manifest = path / "manifest.yaml"
        self.plan = path / "plan.json"
        self.report = path / "report.html"
        self.tensorboard = path / "tensorboard"
        self.model = path / "model"
        self.saved = path / "saved"
        self._metrics_writer: JsonLinesWriter | None = None
        self._timeline_writer: JsonLinesWriter | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End this run's records: what is appended afterwards is another run's."""
        self._metrics_writer = self._timeline_writer = None

    def require_there(self) -> None:
        """Find out whether the folder is still this run's.

        Raises:
            RunFolderGone: it was deleted, moved or replaced since the first record was written.
        """
        with self._recording():
            for writer in (self._metrics_writer, self._timeline_writer):
                if writer is not None:
                    writer.require_own()

    def append(self, record: Record) -> None:
        """Write a record, on disk when this returns."""
        self.require_there()
        with self._recording():
            if self._metrics_writer is None or self._timeline_writer is None:
                self.path.mkdir(parents=True, exist_ok=True)
                self._metrics_writer = JsonLinesWriter(self.metrics)
                self._timeline_writer = JsonLinesWriter(self.timeline)
            if isinstance(record, StepRecord) and record.spans:
                self._timeline_writer.write(spans_to_json(record.step, record.spans))
            self._metrics_writer.write(to_json(record))

    def write_manifest(self, text: str) -> None:
        """Keep the manifest in force."""
        self._replace(self.manifest, text.encode())

    def write_plan(self, plan: Plan) -> None:
        """Keep the plan."""
        self._replace(self.plan, (plan.model_dump_json(by_alias=True, indent=2) + "\n").encode())

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Keep the run's summary."""
        text = json.dumps(plain_values(summary), indent=2, allow_nan=False)
        self._replace(self.summary, (text + "\n").encode())

    def write_report(self, html: str) -> None:
        """Keep the run's report."""
        self._replace(self.report, html.encode())

    def write_lines(self, name: str, step: int, lines: bytes) -> None:
        """Keep what a step saves under a name; an earlier run of the step is replaced."""
        self._replace(self.saved / name / f"step-{step:06d}.jsonl", lines)

    def read(self) -> RunRecords:
        """Every record, without spans.

        Raises:
            NotARun: the folder holds no metrics.jsonl.
        """
        if not self.metrics.is_file():
            raise NotARun(
                f"no run in this folder: got {self.path}, which has no {self.metrics.name}; "
                "give the folder that `rlhf run` wrote (its --output)"
            )
        log = RecordLog()
        for line in read_lines(self.metrics):
            value = parse_line(line)
            try:
                record = None if value is None else from_json(value)
            except (KeyError, TypeError, ValueError, AttributeError):
                record = None
            log.add(record)
        return log.records()

    def read_spans(self, steps: Collection[int]) -> dict[int, tuple[Span, ...]]:
        """The spans of some steps; other lines are skipped unparsed, so long runs stay cheap."""
        wanted = {b'{"step": %d,' % step for step in steps}
        spans: dict[int, tuple[Span, ...]] = {}
        for line in read_lines(self.timeline):
            if line[: line.find(b",") + 1] not in wanted:
                continue
            value = parse_line(line)
            try:
                step, found = (0, ()) if value is None else spans_from_json(value)
            except (KeyError, TypeError, ValueError):
                continue
            if found:
                spans[step] = found
        return spans

    def read_manifest(self) -> str | None:
        """The manifest's text, or None where there is none."""
        return _text(self.manifest)

    def read_plan(self) -> Plan | None:
        """The plan, or None where there is none or it is of another version."""
        text = _text(self.plan)
        if text is None:
            return None
        try:
            return Plan.model_validate_json(text)
        except ValueError:
            return None

    def _replace(self, path: Path, content: bytes) -> None:
        """Write aside and rename, so that a reader never sees half a file."""
        aside = self.path / (path.name + ".new")
        self.require_there()
        with self._recording():
            path.parent.mkdir(parents=True, exist_ok=True)
            aside.write_bytes(content)
            aside.replace(path)

    @contextmanager
    def _recording(self) -> Iterator[None]:
        try:
            yield
        except FileGone as error:
            raise RunFolderGone(
                "the run's folder, or the records in it, were deleted, moved or replaced while the "
                f"job ran: got {error}; what was recorded so far (metrics, report, saved lines) is "
                "lost unless it lies elsewhere now"
            ) from error
        except OSError as error:
            raise CannotRecord(
                f"the run's folder cannot be written: got {type(error).__name__}: {error} in "
                f"{self.path}; free space there, then give the same command again: it goes on from "
                "the newest checkpoint"
            ) from error


def _text(path: Path) -> str | None:
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else None
