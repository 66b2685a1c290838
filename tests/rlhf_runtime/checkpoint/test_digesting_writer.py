"""What was written is known without being read back."""

from __future__ import annotations

import hashlib
import os
import pickle
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch.distributed.checkpoint.api import CheckpointException

from rlhf_runtime.checkpoint.digesting_writer import DigestingWriter
from rlhf_runtime.checkpoint.record import SavedFile
from rlhf_runtime.checkpoint.saver import Saver
from rlhf_runtime.errors import CheckpointFailed

from ...small_disk import small_disk


def test_digests_are_those_of_the_files(tmp_path: Path) -> None:
    writer = DigestingWriter(str(tmp_path))
    with writer.fs.create_stream(tmp_path / "a", "wb") as stream:
        stream.write(b"first")
        torch.save(torch.arange(1000), stream)
        os.fsync(stream.fileno())
        assert stream.tell() == (tmp_path / "a").stat().st_size, "what is synced is flushed"
    writer.fs.rename(tmp_path / "a", tmp_path / "b")
    contents = (tmp_path / "b").read_bytes()
    digest = hashlib.blake2b(contents, digest_size=16).hexdigest()
    assert writer.written == {"b": SavedFile(len(contents), digest)}


def test_a_full_disk_is_told_as_such_and_not_as_torch_sees_it(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", mebibytes=1) as disk:
        writer = DigestingWriter(str(disk.seen))
        with (
            pytest.raises(OSError, match="No space left on device"),
            writer.fs.create_stream(disk.seen / "a", "wb") as stream,
        ):
            torch.save(torch.zeros(1 << 20), stream)
    assert writer.written == {}


class NoStaging:
    """Stagers of a saver that copies nothing."""

    def release(self, stager: object) -> None:
        """Do nothing."""


def test_a_rank_frees_what_it_has_written_before_its_disk_was_full(tmp_path: Path) -> None:
    """The driver may wait for this space with its own records."""
    with small_disk(tmp_path / "disk", mebibytes=1) as disk:
        pool = disk.seen / "step" / "local"
        writer = DigestingWriter(str(pool))
        pool.mkdir(parents=True)
        (pool / "first").write_bytes(bytes(1000))
        disk.fill()
        writing = Future[None]()
        with pytest.raises(OSError) as full:
            (pool / "second").write_bytes(bytes(1 << 20))
        causes = {0: (OSError("gone"), full.value.__traceback__), 1: (full.value, None)}
        writing.set_exception(CheckpointException("failed", causes))  # type: ignore[arg-type]
        with pytest.raises(CheckpointFailed, match="No space left on device") as caught:
            Saver._files(
                SimpleNamespace(_staging=NoStaging()),  # type: ignore[arg-type]
                *(writing, None, writer),  # type: ignore[arg-type]
            )
        assert not pool.exists()
    assert pickle.loads(pickle.dumps(caught.value)).is_disk_full
