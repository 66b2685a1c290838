"""Files of a job's folder that `rlhf fetch` copies, and its progress bars."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType

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
from rlhf_cli.cluster.downloading import Bar, FetchItem, download
from rlhf_cli.cluster.errors import NothingToRead, TransferFailed
from rlhf_cli.cluster.jobs import Job
from rlhf_cli.cluster.location import MODEL, REPORT
from rlhf_cli.cluster.opening import JobFiles
from rlhf_cli.cluster.reader import Notify
from rlhf_kube.errors import CommandFailed, StreamBroken
from rlhf_runtime.telemetry.metric_names import format_bytes

_MODEL = (FetchItem(MODEL),)
_REPORT = (FetchItem(REPORT),)
_METRICS = (
    FetchItem("metrics.jsonl", grows=True),
    FetchItem("timeline.jsonl", grows=True),
    FetchItem("summary.json"),
)
_SAVED = (FetchItem("saved", grows=True),)
_SAMPLES = (FetchItem("samples", grows=True),)
_OTHERS = (
    FetchItem("manifest.yaml"),
    FetchItem("plan.json"),
    FetchItem("requirements.json"),
    FetchItem("logs", grows=True),
    FetchItem("tensorboard", grows=True),
)
FETCH_ITEMS: Mapping[str, tuple[FetchItem, ...]] = MappingProxyType(
    {
        "model": _MODEL,
        "report": _REPORT,
        "metrics": _METRICS,
        "samples": _SAMPLES,
        "saved": _SAVED,
        "all": (*_MODEL, *_REPORT, *_METRICS, *_SAMPLES, *_SAVED, *_OTHERS),
    }
)
"""Files by the command's argument. Checkpoints are left out: only the job itself uses them."""


def fetch_files(
    job: Job, opened: JobFiles, what: str, output: Path, notify: Notify, replace: bool = False
) -> list[Path]:
    """Fetch files of a job; return their paths on this machine.

    Args:
        what: a key of FETCH_ITEMS.
        output: the folder that receives them.
        notify: prints a line for the user.
        replace: replace files that exist there.

    Raises:
        NothingToRead: none of them exists yet.
        OutputExists, TransferFailed: see `download`.
    """
    # A resumed run leaves the model of its earlier end until it ends again.
    if what == "model" and job.status.phase is not JobPhase.SUCCEEDED:
        notify(
            f"{job.name} has not succeeded ({job.status.phase}): a model may be of an earlier run"
        )
    try:
        with _bar(notify) as bar:
            paths = download(opened.run, FETCH_ITEMS[what], output, bar, replace=replace)
    except (StreamBroken, CommandFailed) as error:
        raise TransferFailed(
            f"the job's folder cannot be listed: got {error}; try again"
        ) from error
    if not paths:
        progress = job.status.progress
        steps = f", step {progress.step} of {progress.total_steps}" if progress else ""
        raise NothingToRead(
            f"no such files yet: got {what} of {job.name} "
            f"({job.status.phase}{steps}); model and report are written at the end, and "
            "only a step that calls flow.save writes `saved`"
        )
    return paths


class _LineBar:
    """Prints a line for each file."""

    def __init__(self, notify: Notify) -> None:
        self._notify = notify

    def begin(self, path: str, size: int) -> None:
        self._notify(f"fetching {path} ({format_bytes(size)})")

    def arrived(self, size: int) -> None:
        pass


class _RichBar:
    """Draws a bar for each file."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._task: TaskID | None = None

    def begin(self, path: str, size: int) -> None:
        self._task = self._progress.add_task(path, total=size)

    def arrived(self, size: int) -> None:
        assert self._task is not None
        self._progress.advance(self._task, size)


@contextmanager
def _bar(notify: Notify) -> Iterator[Bar]:
    """Choose the progress display for standard error."""
    # A redrawn bar would fill a log file.
    if not sys.stderr.isatty():
        yield _LineBar(notify)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as progress:
        yield _RichBar(progress)
