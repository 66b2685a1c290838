"""torch's writer of checkpoints over fsspec, with digests computed while writing."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from torch.distributed.checkpoint._fsspec_filesystem import FileSystem, FsspecWriter

from rlhf_runtime.checkpoint.record import SavedFile, new_digest
from rlhf_runtime.checkpoint.storage import filesystem_options, resolve_storage


class DigestingWriter(FsspecWriter):
    """Records sizes and digests of the files it writes: nothing is read back."""

    def __init__(self, address: str) -> None:
        location, options = resolve_storage(address), filesystem_options(address)
        # Where a file has no descriptor, torch would sync the whole machine.
        super().__init__(address, sync_files=location.is_local, **options)
        # This rank's files, by name.
        self.written: dict[str, SavedFile] = {}
        files = _DigestingFileSystem(self.written, location.has_folders)
        files.init_path(address, **options)
        self.fs = files  # type: ignore[assignment]
        self._location = location

    def remove(self) -> None:
        """Delete what all ranks of the pool have written; errors are ignored."""
        # At once: on a full disk others wait for this space, also the driver's records.
        with suppress(Exception):  # every file system has errors of its own
            self._location.fs.rm(self._location.path, recursive=True)


class _DigestingFileSystem(FileSystem):
    """Files are written once, from beginning to end, and may then be renamed."""

    def __init__(self, written: dict[str, SavedFile], has_folders: bool) -> None:
        super().__init__()
        self._written = written
        self._has_folders = has_folders

    def mkdir(self, path: str | os.PathLike[str]) -> None:
        if self._has_folders:
            super().mkdir(path)

    @contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Iterator[io.IOBase]:
        with super().create_stream(path, mode) as stream:
            digesting = _DigestingStream(stream)
            try:
                yield digesting
            except Exception as error:
                # torch drops the error of a write and complains about its own position instead.
                raise digesting.failure or error from error
        self._written[_name(path)] = digesting.saved()

    def rename(self, path: str | os.PathLike[str], new_path: str | os.PathLike[str]) -> None:
        super().rename(path, new_path)
        self._written[_name(new_path)] = self._written.pop(_name(path))


class _DigestingStream(io.IOBase):
    """A stream that is written once."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._digest = new_digest()
        self._num_bytes = 0
        # The first error of a write.
        self.failure: Exception | None = None

    def write(self, data: Any) -> int:
        self._digest.update(data)
        self._num_bytes += memoryview(data).nbytes
        try:
            written: int = self._stream.write(data)
        except Exception as error:
            self.failure = self.failure or error
            raise
        return written

    def tell(self) -> int:
        return self._num_bytes

    def flush(self) -> None:
        self._stream.flush()

    def fileno(self) -> int:
        """Return the descriptor, which torch syncs without flushing the file."""
        self.flush()
        number: int = self._stream.fileno()
        return number

    def close(self) -> None:
        self._stream.close()

    def saved(self) -> SavedFile:
        return SavedFile(self._num_bytes, self._digest.hexdigest())


def _name(path: str | os.PathLike[str]) -> str:
    return os.fspath(path).rsplit("/", 1)[-1]
