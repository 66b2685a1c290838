"""The files of a job's folder at an address: read from this machine, with its own credentials."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rlhf_cli.cluster.client import StreamBroken
from rlhf_cli.cluster.errors import ExtraMissing, NothingToRead
from rlhf_cli.cluster.run_files import RunFile, safe_path

_BLOCK_BYTES = 1 << 20


class UriFiles:
    """A folder that fsspec finds."""

    def __init__(self, address: str) -> None:
        """Find the file system of an address.

        Raises:
            ExtraMissing: its package is not installed.
            NothingToRead: nobody knows such an address.
        """
        try:
            from rlhf_runtime.checkpoint.storage import resolve_storage

            place = resolve_storage(address)
        except ImportError as error:
            raise ExtraMissing(
                f"{address} cannot be read from here: got {error}; install what it names, for "
                's3:// as by `uv pip install "rlhf-operator[s3]"`'
            ) from error
        except ValueError as error:
            raise NothingToRead(
                f"the job's folder cannot be read: got {address} ({error}); correct "
                "checkpoint.storage.uri"
            ) from error
        self._fs, self._root = place.fs, place.path.rstrip("/")

    def list(self, paths: Sequence[str]) -> list[RunFile]:
        """All files at or below some paths."""
        found: dict[str, RunFile] = {}
        for path in paths:
            for full, about in self._find(f"{self._root}/{path}".rstrip("/.")).items():
                relative = safe_path(full[len(self._root) :].lstrip("/"))
                found[relative] = RunFile(relative, int(about["size"]), _version(about))
        return sorted(found.values(), key=lambda file: file.path)

    def _find(self, path: str) -> dict[str, dict[str, Any]]:
        try:
            return dict(self._fs.find(path, detail=True))
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise StreamBroken(f"{type(error).__name__}: {error} at {path}") from error

    def read(self, path: str, offset: int, length: int) -> Iterator[bytes]:
        """A part of a file."""
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


def _version(about: dict[str, Any]) -> str:
    marks = (about.get(name) for name in ("ETag", "etag", "mtime", "LastModified", "size"))
    return " ".join(str(mark) for mark in marks if mark is not None)
