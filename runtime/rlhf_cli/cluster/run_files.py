"""List and read the files of a job's folder, in a pod or at an address, through one protocol."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, Final, Protocol

from rlhf_cli.cluster.errors import ExtraMissing, NothingToRead, TransferFailed
from rlhf_kube.errors import CommandFailed, StreamBroken
from rlhf_kube.protocol import Cluster

RAY_LOGS: Final = "/tmp/ray/session_latest/logs"
"""Ray's own logs in the head pod. Ray writes the output of a submission there."""

_BLOCK_BYTES: Final = 1 << 20
# Only what any small image has. The folder and paths are arguments, so that nothing in them is run
# by the shell.
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
    """Changes whenever the file's content changes."""


class RunFiles(Protocol):
    """The files of one folder.

    Every method raises StreamBroken where a retry may help, and errors of the cluster.
    """

    def list(self, paths: Sequence[str]) -> list[RunFile]:
        """All files at or below the paths; paths that do not exist are skipped."""
        ...

    def read(self, path: str, offset: int, length: int) -> Iterator[bytes]:
        """At most `length` bytes of a file from `offset`, in pieces."""
        ...


class PodFiles:
    """A folder in a running container, read by commands that run there."""

    def __init__(
        self, cluster: Cluster, namespace: str, pod: str, container: str, root: str
    ) -> None:
        self._cluster, self._root = cluster, root
        self._container = (namespace, pod, container)

    def list(self, paths: Sequence[str]) -> list[RunFile]:
        lines = b"".join(self._run(_LIST, *paths)).decode("utf-8", "replace").splitlines()
        return sorted(map(_read_line, lines), key=lambda file: file.path)

    def read(self, path: str, offset: int, length: int) -> Iterator[bytes]:
        return self._run(_READ, path, str(offset), str(length))

    def _run(self, script: str, *arguments: str) -> Iterator[bytes]:
        command = ["sh", "-c", script, "sh", self._root, *arguments]
        try:
            yield from self._cluster.execute(*self._container, command)
        except CommandFailed as error:
            # A folder that does not exist has no files: that is an empty list, no error.
            if "can't cd" in error.output or "No such file" in error.output:
                return
            raise


def _read_line(line: str) -> RunFile:
    # The path comes last, because it may contain spaces.
    size, changed, path = (*line.split(" ", 2), "", "")[:3]
    if not size.isdecimal():
        raise TransferFailed(f"the list of the job's files cannot be read: got {line!r}")
    return RunFile(safe_path(path), int(size), f"{size} {changed}")


def safe_path(path: str) -> str:
    """Return a path that stays below its folder.

    Raises:
        TransferFailed: the path is absolute or leads out of the folder.
    """
    # The list comes from a pod that may run any image: it must not write outside of the output.
    pure = PurePosixPath(path)
    if pure.is_absolute() or ".." in pure.parts or not pure.parts:
        raise TransferFailed(f"a file's path leads out of the job's folder: got {path!r}")
    return str(pure)


class UriFiles:
    """A folder that fsspec reads, with this machine's credentials."""

    def __init__(self, address: str) -> None:
        """Open the file system of an address.

        Raises:
            ExtraMissing: its package is not installed.
            NothingToRead: no file system supports the address.
        """
        # Imported here, because the base install lacks fsspec.
        try:
            from rlhf_runtime.checkpoint.storage import resolve_storage

            storage = resolve_storage(address)
        except ImportError as error:
            raise ExtraMissing(
                f"{address} cannot be read from here: got {error}; install the package that it "
                'names, for s3:// by `uv pip install "rlhf-operator[s3]"`'
            ) from error
        except ValueError as error:
            raise NothingToRead(
                f"the job's folder cannot be read: got {address} ({error}); correct "
                "checkpoint.storage.uri"
            ) from error
        self._fs, self._root = storage.fs, storage.path.rstrip("/")

    def list(self, paths: Sequence[str]) -> list[RunFile]:
        files: dict[str, RunFile] = {}
        for path in paths:
            for full_path, info in self._find(f"{self._root}/{path}".rstrip("/.")).items():
                relative = safe_path(full_path[len(self._root) :].lstrip("/"))
                files[relative] = RunFile(relative, int(info["size"]), _version(info))
        return sorted(files.values(), key=lambda file: file.path)

    def _find(self, path: str) -> dict[str, dict[str, Any]]:
        try:
            return dict(self._fs.find(path, detail=True))
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise StreamBroken(f"{type(error).__name__}: {error} at {path}") from error

    def read(self, path: str, offset: int, length: int) -> Iterator[bytes]:
        try:
            with self._fs.open(f"{self._root}/{path}", "rb") as file:
                file.seek(offset)
                while length > 0 and (block := file.read(min(length, _BLOCK_BYTES))):
                    length -= len(block)
                    yield block
        except FileNotFoundError:
            return
        except OSError as error:
            raise StreamBroken(f"{type(error).__name__}: {error} at {path}") from error


def _version(info: dict[str, Any]) -> str:
    marks = (info.get(name) for name in ("ETag", "etag", "mtime", "LastModified", "size"))
    return " ".join(str(mark) for mark in marks if mark is not None)
