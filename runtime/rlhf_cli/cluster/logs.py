"""`rlhf logs`: what a job's processes wrote, while its cluster lives and after it is gone."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import BinaryIO

import typer

from rlhf_api.on_cluster import DRIVER_LOG
from rlhf_cli.cluster.client import Cluster, CommandFailed, StreamBroken
from rlhf_cli.cluster.errors import (
    ClusterUnreachable,
    JobNotFound,
    NothingToRead,
    ObjectNotFound,
    TransferFailed,
)
from rlhf_cli.cluster.events import events_of, events_table
from rlhf_cli.cluster.jobs import Job, find_job
from rlhf_cli.cluster.opening import Opened, Reading, opened_run
from rlhf_cli.cluster.tailing import LogFile, Tail, start_of_tail

LOOK_SECONDS = 2.0
"""How often a followed log is looked at."""
PATIENCE = 30
"""How often in a row a log may not be reached before that is told."""


@dataclass(frozen=True)
class Wanted:
    """Which log: of the driver, or of one worker."""

    worker: str | None = None
    """rank-0, data, reward; None: the driver."""

    @property
    def path(self) -> str:
        """Where it lies in the job's folder."""
        return DRIVER_LOG if self.worker is None else f"logs/{self.worker}.log"


def logs_command(
    cluster: Cluster,
    name: str,
    worker: str | None,
    events: bool,
    tail: int | None,
    follow: bool,
    reading: Reading,
    out: BinaryIO | None = None,
    pause: Callable[[float], None] = time.sleep,
) -> None:
    """Print a log of a job, or the events about it.

    Args:
        worker: whose log, such as rank-0; None: the driver's.
        events: print Kubernetes' events instead.
        tail: only so many of its last lines.
        follow: go on until the job has ended.
        out: where to; standard output by default.
        pause: waits so many seconds between two looks.

    Raises:
        NothingToRead: there is no such log.
    """
    job = find_job(cluster, name)
    if events:
        typer.echo(events_table(events_of(cluster, job), datetime.now(UTC)), nl=False)
        return
    stream = out or sys.stdout.buffer
    printer = _Printer(cluster, Wanted(worker), tail, reading, stream)
    if not follow or job.has_ended:
        printer.print_once(job)
        return
    _follow(cluster, name, printer, pause)


def _follow(cluster: Cluster, name: str, printer: _Printer, pause: Callable[[float], None]) -> None:
    """Print what is added to a log until its job has ended."""
    failures = 0
    while True:
        try:
            job = find_job(cluster, name)
            printer.print_news(job)
            failures = 0
        except JobNotFound:
            raise
        except (StreamBroken, CommandFailed, ObjectNotFound, ClusterUnreachable) as error:
            failures += 1
            if failures > PATIENCE:
                raise TransferFailed(f"the log cannot be reached any more: got {error}") from error
        else:
            if job.exit_code is not None:
                break
        pause(LOOK_SECONDS)
    if not printer.has_printed:
        printer.print_once(job)
    _tell(f"{job.name} has ended: {job.status.phase}")


class _Printer:
    """Prints one log, wherever it lies by now."""

    def __init__(
        self, cluster: Cluster, wanted: Wanted, tail: int | None, reading: Reading, out: BinaryIO
    ) -> None:
        self._cluster, self._wanted, self._reading = cluster, wanted, reading
        self._lines, self._out = tail, out
        self._tails: dict[str, Tail] = {}
        self._from_ray = False

    @property
    def has_printed(self) -> bool:
        """Whether the log was ever found."""
        return bool(self._tails)

    def print_once(self, job: Job) -> None:
        """Print it as it is. Raises NothingToRead if there is none."""
        with opened_run(self._cluster, job, self._reading, _tell) as opened:
            try:
                if not self._print(job, opened):
                    raise NothingToRead(self._nothing(job, opened))
            except (StreamBroken, CommandFailed) as error:
                raise TransferFailed(
                    f"the log did not arrive whole: got {error}; try again"
                ) from error

    def print_news(self, job: Job) -> None:
        """Print what was added; nothing while it cannot be reached without a pod of its own."""
        if job.status.cluster is None and (self._from_ray or not job.has_ended):
            return  # what Ray kept is gone with it; the job's folder would begin anew
        with opened_run(self._cluster, job, self._reading, _tell) as opened:
            self._print(job, opened)

    def _print(self, job: Job, opened: Opened) -> bool:
        """Print the first of its places that there is; whether there is any."""
        for log in self._places(job, opened):
            found = log.find()
            if found is None:
                continue
            if log.path not in self._tails:
                first = not self._tails and self._lines is not None
                start = start_of_tail(log, found.size, self._lines or 0) if first else 0
                self._tails[log.path] = Tail(start)
            self._out.write(self._tails[log.path].news(log))
            self._out.flush()
            self._from_ray = log.files is opened.ray
            return True
        return False

    def _places(self, job: Job, opened: Opened) -> Iterator[LogFile]:
        driver = job.status.driver
        if self._wanted.worker is None and opened.ray is not None and driver is not None:
            yield LogFile(opened.ray, f"job-driver-{driver.submission_id}.log")
        yield LogFile(opened.run, self._wanted.path)

    def _nothing(self, job: Job, opened: Opened) -> str:
        there = [file.path for file in opened.run.list(["logs"])]
        names = [path.removeprefix("logs/").removesuffix(".log") for path in there]
        allowed = ", ".join(names) or "none: nothing has been written yet"
        return (
            f"no such log: got {self._wanted.path} of {job.name} ({job.status.phase}), "
            f"allowed {allowed}; `rlhf describe {job.arguments}` says what the job does"
        )


def _tell(text: str) -> None:
    typer.echo(text, err=True)
