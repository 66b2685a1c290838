"""A rank's part in saving and loading: torch.distributed.checkpoint over fsspec.

State is copied first; the copy is written in a thread while training goes on. The collectives of
that thread use a group of their own, so that they cannot meet those of training.
"""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import torch.distributed as dist
from torch.distributed.checkpoint._fsspec_filesystem import FsspecReader, FsspecWriter
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict_loader import load as load_in_place
from torch.distributed.checkpoint.state_dict_saver import async_save

from rlhf_runtime.checkpoint.record import SavedFile
from rlhf_runtime.checkpoint.store import describe_files
from rlhf_runtime.engines.world import World
from rlhf_runtime.errors import CheckpointFailed

State = dict[str, Any]
"""Nested dictionaries of tensors and plain values."""

METADATA_FILE = ".metadata"


class Saver:
    """Writes checkpoints of this rank's state, one at a time. Every rank of the world has one."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._group = dist.new_group(backend="gloo")
        pinned = world.device.type == "cuda"
        self._staging = StagingOptions(
            use_pinned_memory=pinned,
            use_shared_memory=False,
            use_async_staging=False,
            use_non_blocking_copy=pinned,
        )
        self._writing: Future[Any] | None = None
        self._address = ""

    def begin(self, state: State, address: str) -> None:
        """Copy the state and begin to write the copy; collective. `finish` tells of failures."""
        self._address = address
        writing = async_save(
            state,
            storage_writer=FsspecWriter(address),
            process_group=self._group,
            async_stager=DefaultStager(self._staging),
        )
        assert isinstance(writing, Future)  # staging is over: only then training may go on
        self._writing = writing

    def finish(self) -> dict[str, SavedFile]:
        """Wait until it is written; returns the files that this rank wrote, if any was begun.

        Raises:
            CheckpointFailed: it could not be written, on any rank.
        """
        if self._writing is None:
            return {}
        writing, self._writing = self._writing, None
        try:
            writing.result()
        except CheckpointException as error:
            causes = dict.fromkeys(f"{type(e).__name__}: {e}" for e, _ in error.failures.values())
            raise CheckpointFailed("; ".join(causes)) from error
        files = describe_files(self._address, f"__{self._world.rank}_")
        return files | (describe_files(self._address, METADATA_FILE) if self._is_first else {})

    @property
    def _is_first(self) -> bool:
        return self._world.rank == 0


def saved_keys(address: str) -> frozenset[str]:
    """Names of everything in a checkpoint, nested names joined by dots."""
    return frozenset(FsspecReader(address).read_metadata().state_dict_metadata)


def load(state: State, address: str) -> None:
    """Overwrite tensors in place, and plain values in their dictionaries; collective."""
    load_in_place(state, storage_reader=FsspecReader(address))
