"""A rank's part in saving and loading: torch.distributed.checkpoint over fsspec.

State is copied first; the copy is written in a thread while training goes on. The collectives of
that thread use a group of their own, so that they cannot meet those of training.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch.distributed as dist
from torch.distributed.checkpoint._fsspec_filesystem import FsspecReader
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict_loader import load as load_in_place
from torch.distributed.checkpoint.state_dict_saver import async_save

from rlhf_runtime.checkpoint.places import UNCACHED
from rlhf_runtime.checkpoint.record import SavedFile
from rlhf_runtime.checkpoint.writer import DigestingWriter
from rlhf_runtime.engines.world import World
from rlhf_runtime.errors import CheckpointFailed

State = dict[str, Any]
"""Nested dictionaries of tensors and plain values."""


class Saver:
    """Writes checkpoints of this rank's state, one at a time. Every rank of the world has one."""

    def __init__(self, world: World) -> None:
        self._group = dist.new_group(backend="gloo")
        pinned = world.device.type == "cuda"
        self._staging = StagingOptions(
            use_pinned_memory=pinned,
            use_shared_memory=False,
            use_async_staging=False,
            use_non_blocking_copy=pinned,
        )
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._written: Future[dict[str, SavedFile]] | None = None

    def begin(self, state: State, address: str) -> None:
        """Copy the state and begin to write the copy; collective. `finish` tells of failures."""
        stager, writer = DefaultStager(self._staging), DigestingWriter(address)
        writing = async_save(
            state,
            storage_writer=writer,
            process_group=self._group,
            async_stager=stager,
        )
        assert isinstance(writing, Future)  # the copy is made: only then training may go on
        self._written = self._thread.submit(_files, writing, stager, writer)

    def finish(self) -> dict[str, SavedFile]:
        """Wait until it is written; returns the files that this rank wrote, if any was begun.

        Raises:
            CheckpointFailed: it could not be written, on any rank.
        """
        if self._written is None:
            return {}
        written, self._written = self._written, None
        return written.result()


def _files(
    writing: Future[Any], stager: DefaultStager, writer: DigestingWriter
) -> dict[str, SavedFile]:
    """In the thread: what this rank has written, when it is there."""
    try:
        writing.result()
        return writer.written
    except CheckpointException as error:
        raise _not_written(_causes(error)) from error
    except Exception as error:  # every file system has errors of its own
        raise _not_written(f"{type(error).__name__}: {error}") from error
    finally:
        stager.close()  # it holds the copy, in a cycle


def _not_written(got: str) -> CheckpointFailed:
    return CheckpointFailed(f"got {got}; free space, or correct checkpoint.storage")


def saved_keys(address: str) -> frozenset[str]:
    """Names of everything in a checkpoint, nested names joined by dots."""
    return frozenset(FsspecReader(address, **UNCACHED).read_metadata().state_dict_metadata)


def load(state: State, address: str) -> None:
    """Overwrite tensors in place, and plain values in their dictionaries; collective.

    Raises:
        CheckpointFailed: it cannot be read, or is not that of such a state.
    """
    try:
        load_in_place(state, storage_reader=FsspecReader(address, **UNCACHED))
    except CheckpointException as error:
        raise CheckpointFailed(f"{address} cannot be loaded: {_causes(error)}") from error


def _causes(error: CheckpointException) -> str:
    """What the ranks raised, each text once; torch's own text has all of their stacks."""
    return "; ".join(dict.fromkeys(f"{type(e).__name__}: {e}" for e, _ in error.failures.values()))
