"""The files of a job's folder, wherever it lies: listed and read by one protocol."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Final, Protocol

from rlhf_cli.cluster.client import Cluster, CommandFailed
from rlhf_cli.cluster.errors import TransferFailed

RAY_LOGS: Final = "/tmp/ray/session_latest/logs"
"""Ray's own logs in the head: it keeps the output of a submission there."""

_LIST = 'cd "$1" && shift && find "$@" -type f -exec stat -c "%s %Y %n" {} + 2>/dev/null; true'
_READ = 'cd "$1" && tail -c "+$(($3 + 1))" -- "$2" | head -c "$4"'


@dataclass(frozen=True)
class RunFile:
    """A file of a job's folder."""

    path: str
    """Relative to the folder, with slashes."""
    size: int
    """In bytes."""
    version: str
    """Another one means another content."""


class RunFiles(Protocol):
    """The files of one folder.

    Every method raises StreamBroken where trying again may help, and errors of the cluster.
    """

    def list(self, paths: Sequence[str]) -> list[RunFile]:
        """All files at or below some paths; paths that do not exist are passed over."""
        ...

    def read(self, path: str, offset: int, length: int) -> Iterator[bytes]:
        """A part of a file, in pieces; less of it where the file is shorter."""
        ...


class PodFiles:
    """A folder that a running container sees, through commands in it."""

    def __init__(
        self, cluster: Cluster, namespace: str, pod: str, container: str, root: str
    ) -> None:
        self._cluster, self._root = cluster, root
        self._where = (namespace, pod, container)

    def list(self, paths: Sequence[str]) -> list[RunFile]:
        """All files at or below some paths."""
        lines = b"".join(self._run(_LIST, *paths)).decode("utf-8", "replace").splitlines()
        return sorted(map(_read_line, lines), key=lambda file: file.path)

    def read(self, path: str, offset: int, length: int) -> Iterator[bytes]:
        """A part of a file."""
        return self._run(_READ, path, str(offset), str(length))

    def _run(self, script: str, *arguments: str) -> Iterator[bytes]:
        command = ["sh", "-c", script, "sh", self._root, *arguments]
        try:
            yield from self._cluster.execute(*self._where, command)
        except CommandFailed as error:
            if "can't cd" in error.output or "No such file" in error.output:
                return  # the folder is not there: so are its files
            raise


def _read_line(line: str) -> RunFile:
    size, changed, path = (*line.split(" ", 2), "", "")[:3]
    if not size.isdecimal():
        raise TransferFailed(f"the list of the job's files cannot be read: got {line!r}")
    return RunFile(safe_path(path), int(size), f"{size} {changed}")


def safe_path(path: str) -> str:
    """A path that stays below the folder that it is relative to.

    Raises:
        TransferFailed: it does not.
    """
    pure = PurePosixPath(path)
    if pure.is_absolute() or ".." in pure.parts or not pure.parts:
        raise TransferFailed(f"a file's path leads out of the job's folder: got {path!r}")
    return str(pure)
