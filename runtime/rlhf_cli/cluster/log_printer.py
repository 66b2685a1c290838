"""Print the end of a log, and follow what is appended to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import BinaryIO, Final

import typer

from rlhf_api.on_cluster import DRIVER_LOG
from rlhf_cli.cluster.errors import JobNotFound, NothingToRead, TransferFailed
from rlhf_cli.cluster.jobs import Job, find_job
from rlhf_cli.cluster.opening import JobFiles, ReadOptions, open_job_files
from rlhf_cli.cluster.run_files import RunFile, RunFiles
from rlhf_kube.errors import CommandFailed, NotFound, StreamBroken, Unreachable
from rlhf_kube.protocol import Cluster

BLOCK_BYTES: Final = 1 << 16
MAX_READ_BYTES: Final = 1 << 24
"""Maximum bytes per read."""
POLL_SECONDS = 2.0
"""Interval at which a followed log is read."""
MAX_FAILURES = 30
"""Consecutive failures after which following stops."""


@dataclass(frozen=True)
class LogName:
    """The log of the driver or of a worker."""

    worker: str | None = None
    """Such as rank-0, data or reward; None: the driver."""

    @property
    def path(self) -> str:
        """The path in the job's folder."""
        return DRIVER_LOG if self.worker is None else f"logs/{self.worker}.log"


class LogPrinter:
    """Prints one log, at its current location."""

    def __init__(
        self,
        cluster: Cluster,
        log_name: LogName,
        tail: int | None,
        options: ReadOptions,
        out: BinaryIO,
    ) -> None:
        self._cluster, self._log_name, self._options = cluster, log_name, options
        self._lines, self._out = tail, out
        self._tails: dict[str, Tail] = {}
        self._from_ray = False

    def follow(self, name: str, pause: Callable[[float], None]) -> None:
        """Print what is added to the log until its job has ended."""
        failures = 0
        while True:
            try:
                job = find_job(self._cluster, name)
                self.print_new(job)
                failures = 0
            # A deleted job never gets a log, so this is no failure that passes.
            except JobNotFound:
                raise
            except (StreamBroken, CommandFailed, NotFound, Unreachable) as error:
                failures += 1
                if failures > MAX_FAILURES:
                    raise TransferFailed(
                        f"the log cannot be read any more: got {error}; give the command again"
                    ) from error
            else:
                if job.exit_code is not None:
                    break
            pause(POLL_SECONDS)
        # The job has ended without a readable log: this reports why, or prints what a pod can read.
        if not self._tails:
            self.print_once(job)
        _notify(f"{job.name} has ended: {job.status.phase}")

    def print_once(self, job: Job) -> None:
        """Print the log. Raises NothingToRead if it does not exist."""
        with open_job_files(self._cluster, job, self._options, _notify) as opened:
            try:
                if not self._print(job, opened):
                    raise NothingToRead(self._no_log_text(job, opened))
            except (StreamBroken, CommandFailed) as error:
                raise TransferFailed(
                    f"the log did not arrive complete: got {error}; try again"
                ) from error

    def print_new(self, job: Job) -> None:
        """Print what was added. Does nothing where that would need a reader pod."""
        if job.status.cluster is None and (self._from_ray or not job.has_ended):
            # Without a cluster each call would start a reader pod. And where Ray's copy of the log
            # was deleted with the head, the copy in the job's folder would repeat lines.
            return
        with open_job_files(self._cluster, job, self._options, _notify) as opened:
            self._print(job, opened)

    def _print(self, job: Job, opened: JobFiles) -> bool:
        """Print the first source that exists; return whether one does."""
        for log in self._sources(job, opened):
            file = log.find()
            if file is None:
                continue
            # --tail counts for the first file only. A log that moves, as from Ray to the job's
            # folder, continues completely.
            if log.path not in self._tails:
                first = not self._tails and self._lines is not None
                start = tail_offset(log, file.size, self._lines or 0) if first else 0
                self._tails[log.path] = Tail(start)
            self._out.write(self._tails[log.path].read_new(log))
            self._out.flush()
            self._from_ray = log.files is opened.ray
            return True
        return False

    def _sources(self, job: Job, opened: JobFiles) -> Iterator[LogFile]:
        driver = job.status.driver
        # Ray's copy comes first: it has what the driver wrote before the run's folder existed.
        if self._log_name.worker is None and opened.ray is not None and driver is not None:
            yield LogFile(opened.ray, f"job-driver-{driver.submission_id}.log")
        yield LogFile(opened.run, self._log_name.path)

    def _no_log_text(self, job: Job, opened: JobFiles) -> str:
        paths = [file.path for file in opened.run.list(["logs"])]
        names = [path.removeprefix("logs/").removesuffix(".log") for path in paths]
        allowed = ", ".join(names) or "none: nothing has been written yet"
        return (
            f"no such log: got {self._log_name.path} of {job.name} ({job.status.phase}), "
            f"allowed {allowed}; `rlhf describe {job.command_arguments}` shows the job's state"
        )


def _notify(text: str) -> None:
    typer.echo(text, err=True)


@dataclass(frozen=True)
class LogFile:
    """A log and the folder that contains it."""

    files: RunFiles
    path: str

    def find(self) -> RunFile | None:
        """The file's current state; None if it does not exist."""
        return next((file for file in self.files.list([self.path]) if file.path == self.path), None)

    def read(self, offset: int, length: int) -> bytes:
        return b"".join(self.files.read(self.path, offset, length))


def tail_offset(log: LogFile, size: int, lines: int) -> int:
    """The offset of the first of the last lines.

    Args:
        size: the log's length in bytes.
        lines: number of lines; a last line without a line break counts.
    """
    if lines == 0:
        return size
    end, remaining = size, lines
    while end > 0:
        begin = max(0, end - BLOCK_BYTES)
        # Read backwards in blocks, since a log may have gigabytes.
        block = log.read(begin, end - begin)
        breaks = [index for index, byte in enumerate(block) if byte == 0x0A]
        if end == size and breaks and breaks[-1] == len(block) - 1:
            breaks.pop()  # it ends the last line, and starts none
        if len(breaks) >= remaining:
            return begin + breaks[-remaining] + 1
        remaining -= len(breaks)
        end = begin
    return 0


class Tail:
    """Reads a log repeatedly, each byte once."""

    def __init__(self, offset: int = 0) -> None:
        self._offset = offset

    def read_new(self, log: LogFile) -> bytes:
        """Read what was added since the last call; a shorter log counts as a new one."""
        file = log.find()
        if file is None:
            return b""
        # A restarted process has begun the file again.
        if file.size < self._offset:
            self._offset = 0
        pieces = []
        while self._offset < file.size:
            piece = log.read(self._offset, min(file.size - self._offset, MAX_READ_BYTES))
            # The file has shrunk since it was listed.
            if not piece:
                break
            pieces.append(piece)
            self._offset += len(piece)
        return b"".join(pieces)
