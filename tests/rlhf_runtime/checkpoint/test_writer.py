"""What was written is known without being read back."""

from __future__ import annotations

import hashlib
import os
import resource
from pathlib import Path

import pytest
import torch

from rlhf_runtime.checkpoint.record import SavedFile
from rlhf_runtime.checkpoint.writer import DigestingWriter


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
    writer = DigestingWriter(str(tmp_path))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, limits[1]))
    try:
        with (
            pytest.raises(OSError, match="File too large"),
            writer.fs.create_stream(tmp_path / "a", "wb") as stream,
        ):
            torch.save(torch.zeros(1 << 20), stream)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert writer.written == {}
