"""What was written is known without being read back."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest
import torch

from rlhf_runtime.checkpoint.digesting_writer import DigestingWriter
from rlhf_runtime.checkpoint.record import SavedFile

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
