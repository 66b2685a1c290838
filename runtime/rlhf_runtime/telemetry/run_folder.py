"""RunFolder: the files of a run, written and read.

Readers accept runs that were killed (a cut-off last line) or resumed (a later record of a step
replaces the earlier one).
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rlhf_api.plan import Plan
from rlhf_runtime.disk_space import with_cause
from rlhf_runtime.telemetry.appended_file import FileLost
from rlhf_runtime.telemetry.errors import CannotRecord, NotARun, RunFolderLost
from rlhf_runtime.telemetry.record_lines import (
    JsonLinesWriter,
    from_json,
    parse_line,
    plain_values,
    read_lines,
    spans_from_json,
    spans_to_json,
    to_json,
)
from rlhf_runtime.telemetry.records import Record, RecordLog, RunRecords, Span, StepRecord
from rlhf_runtime.telemetry.samples import ResponseSample, SampleKind, to_lines
from rlhf_runtime.telemetry.samples import from_json as sample_from_json


class RunFolder:
    """A run's folder. Creating the object touches nothing; the first record creates the files.

    Raises, in every method that writes:
        CannotRecord: the disk is full, or not available.
        RunFolderLost: the folder, or the records in it, were deleted, moved or replaced since the
            first record was written. No new folder is created.
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
        self.samples = path / "samples"
        self.journal = path / "journal"
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
        """End the records of this run; later ones belong to another run."""
        self._metrics_writer = self._timeline_writer = None

    def require_intact(self) -> None:
        """Check that the folder still belongs to this run.

        Raises:
            RunFolderLost: it was deleted, moved or replaced since the first record was written.
        """
        with self._recording():
            for writer in (self._metrics_writer, self._timeline_writer):
                if writer is not None:
                    writer.require_unchanged()

    def append(self, record: Record) -> None:
        """Write a record; it is on the disk when this returns."""
        self.require_intact()
        with self._recording():
            if self._metrics_writer is None or self._timeline_writer is None:
                self.path.mkdir(parents=True, exist_ok=True)
                self._metrics_writer = JsonLinesWriter(self.metrics)
                self._timeline_writer = JsonLinesWriter(self.timeline)
            if isinstance(record, StepRecord) and record.spans:
                self._timeline_writer.write_line(spans_to_json(record.step, record.spans))
            self._metrics_writer.write_line(to_json(record))

    def write_manifest(self, text: str) -> None:
        """Write the current manifest."""
        self._replace(self.manifest, text.encode())

    def write_plan(self, plan: Plan) -> None:
        """Write the plan."""
        self._replace(self.plan, (plan.model_dump_json(by_alias=True, indent=2) + "\n").encode())

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Write the run's summary."""
        text = json.dumps(plain_values(summary), indent=2, allow_nan=False)
        self._replace(self.summary, (text + "\n").encode())

    def write_report(self, html: str) -> None:
        """Write the run's report."""
        self._replace(self.report, html.encode())

    def write_lines(self, name: str, step: int, lines: bytes) -> None:
        """Write the lines that a step saves under a name; replace those of an earlier run of it."""
        self._replace(self.saved / name / f"step-{step:06d}.jsonl", lines)

    def write_samples(self, samples: Sequence[ResponseSample]) -> None:
        """Write the samples of a pass, at least one; replace those of an earlier run of it."""
        name = _samples_name(samples[0].kind, samples[0].step)
        self._replace(self.samples / name, to_lines(samples))

    def sampled_steps(self, kind: SampleKind) -> list[int]:
        """The steps with samples of a kind of pass, in order."""
        numbers = (
            path.stem.removeprefix(f"{kind.value}-")
            for path in self.samples.glob(f"{kind.value}-*.jsonl")
        )
        return sorted(int(number) for number in numbers if number.isdecimal())

    def read_samples(self, kind: SampleKind, step: int) -> list[ResponseSample]:
        """The samples of a pass; damaged lines are left out."""
        samples = []
        for line in read_lines(self.samples / _samples_name(kind, step)):
            value = parse_line(line)
            with suppress(KeyError, TypeError, ValueError, OverflowError):
                samples += [] if value is None else [sample_from_json(value)]
        return samples

    def require_run(self) -> None:
        """Check that the folder contains a run.

        Raises:
            NotARun: it has no metrics.jsonl.
        """
        if not self.metrics.is_file():
            raise NotARun(
                f"no run in this folder: got {self.path}, which has no {self.metrics.name}; "
                "give the folder that `rlhf run` wrote (its --output)"
            )

    def read(self) -> RunRecords:
        """All records, without spans.

        Raises:
            NotARun: the folder has no metrics.jsonl.
        """
        self.require_run()
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
        """The spans of some steps."""
        # Other lines are skipped unparsed: timelines of long runs are large.
        prefixes = {b'{"step": %d,' % step for step in steps}
        spans: dict[int, tuple[Span, ...]] = {}
        for line in read_lines(self.timeline):
            if line[: line.find(b",") + 1] not in prefixes:
                continue
            value = parse_line(line)
            try:
                step, parsed = (0, ()) if value is None else spans_from_json(value)
            except (KeyError, TypeError, ValueError):
                continue
            if parsed:
                spans[step] = parsed
        return spans

    def read_manifest(self) -> str | None:
        """The manifest's text. None: there is none."""
        return _text(self.manifest)

    def read_plan(self) -> Plan | None:
        """The plan. None: there is none, or it is of another version."""
        text = _text(self.plan)
        if text is None:
            return None
        try:
            return Plan.model_validate_json(text)
        except ValueError:
            return None

    def _replace(self, path: Path, content: bytes) -> None:
        # Write another file and rename it: a reader never sees half a file.
        temporary = self.path / (path.name + ".new")
        self.require_intact()
        with self._recording():
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                temporary.write_bytes(content)
            except OSError:
                # Others wait for the space that a part of it takes.
                temporary.unlink(missing_ok=True)
                raise
            temporary.replace(path)

    @contextmanager
    def _recording(self) -> Iterator[None]:
        try:
            yield
        except FileLost as error:
            raise RunFolderLost(
                "the run's folder, or the records in it, were deleted, moved or replaced while the "
                f"job ran: got {error}; what was recorded so far (metrics, report, saved lines) is "
                "lost unless it lies elsewhere now"
            ) from error
        except OSError as error:
            text = (
                f"the run's folder cannot be written: got {type(error).__name__}: {error} in "
                f"{self.path}; free space there; a run that has ended goes on from the newest "
                "checkpoint when the same command is given again"
            )
            raise with_cause(CannotRecord(text), error) from error


def _samples_name(kind: SampleKind, step: int) -> str:
    return f"{kind.value}-{step:06d}.jsonl"


def _text(path: Path) -> str | None:
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else None
