"""`rlhf fetch`: a job's model, report, metrics and what its steps save, onto this machine."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from rlhf_api.status import JobPhase
from rlhf_cli.cluster.client import Cluster, CommandFailed, StreamBroken
from rlhf_cli.cluster.downloading import Bar, Part, download
from rlhf_cli.cluster.errors import NothingToRead, TransferFailed
from rlhf_cli.cluster.jobs import Job, find_job
from rlhf_cli.cluster.opening import Opened, Reading, opened_run
from rlhf_cli.cluster.place import MODEL, REPORT
from rlhf_runtime.telemetry.metric_names import format_bytes

_MODEL = (Part(MODEL),)
_REPORT = (Part(REPORT),)
_METRICS = (
    Part("metrics.jsonl", grows=True),
    Part("timeline.jsonl", grows=True),
    Part("summary.json"),
)
_SAVED = (Part("saved", grows=True),)
_OTHERS = (
    Part("manifest.yaml"),
    Part("plan.json"),
    Part("logs", grows=True),
    Part("tensorboard", grows=True),
)
PARTS: Mapping[str, tuple[Part, ...]] = MappingProxyType(
    {
        "model": _MODEL,
        "report": _REPORT,
        "metrics": _METRICS,
        "saved": _SAVED,
        "all": (*_MODEL, *_REPORT, *_METRICS, *_SAVED, *_OTHERS),
    }
)
"""What can be asked for, by its word. Checkpoints are not: they are for the job to go on from."""


def fetch_command(
    cluster: Cluster,
    name: str,
    what: str,
    output: Path | None,
    replace: bool,
    reading: Reading,
) -> None:
    """Fetch parts of a job's folder; print where they are.

    Args:
        what: a word of PARTS.
        output: the folder that they are put into; None: one with the job's name.
        replace: whether what lies there already goes.

    Raises:
        NothingToRead: there is nothing of it yet.
        OutputExists, TransferFailed: see `download`.
    """
    job = find_job(cluster, name)
    with opened_run(cluster, job, reading, _tell) as opened:
        for place in fetch(job, opened, what, output or Path(job.name), replace):
            typer.echo(str(place))


def fetch(job: Job, opened: Opened, what: str, output: Path, replace: bool = False) -> list[Path]:
    """Fetch parts of a job's folder that is open; where they are. Raises as `fetch_command`."""
    if what == "model" and job.status.phase is not JobPhase.SUCCEEDED:
        _tell(f"{job.name} has not succeeded ({job.status.phase}): a model may be of before")
    try:
        with _bar() as bar:
            places = download(opened.run, PARTS[what], output, bar, replace=replace)
    except (StreamBroken, CommandFailed) as error:
        raise TransferFailed(
            f"the job's folder cannot be listed: got {error}; try again"
        ) from error
    if not places:
        progress = job.status.progress
        steps = f", step {progress.step} of {progress.total_steps}" if progress else ""
        raise NothingToRead(
            f"there is nothing of that: got {what} of {job.name} "
            f"({job.status.phase}{steps}); model and report are written at the end, and "
            "only a step that calls flow.save has something saved"
        )
    return places


class _Plain:
    """A line for each file."""

    def begin(self, path: str, size: int) -> None:
        """Tell that it is next."""
        _tell(f"fetching {path} ({format_bytes(size)})")

    def arrived(self, size: int) -> None:
        """Say nothing in between."""


class _Drawn:
    """A bar for each file."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._task: TaskID | None = None

    def begin(self, path: str, size: int) -> None:
        """Draw another one."""
        self._task = self._progress.add_task(path, total=size)

    def arrived(self, size: int) -> None:
        """Move it."""
        assert self._task is not None
        self._progress.advance(self._task, size)


@contextmanager
def _bar() -> Iterator[Bar]:
    """What fits where standard error goes."""
    if not sys.stderr.isatty():
        yield _Plain()
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as progress:
        yield _Drawn(progress)


def _tell(text: str) -> None:
    typer.echo(text, err=True)
