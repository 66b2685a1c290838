"""A rank's part in saving and loading: torch.distributed.checkpoint over fsspec.

The state is copied first. A thread writes the copy while training goes on.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.distributed.checkpoint._fsspec_filesystem import FsspecReader
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.staging import AsyncStager, DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict_loader import load as load_in_place
from torch.distributed.checkpoint.state_dict_saver import async_save

from rlhf_runtime.checkpoint.digesting_writer import DigestingWriter
from rlhf_runtime.checkpoint.record import RECORD_FILE, SavedFile
from rlhf_runtime.checkpoint.storage import filesystem_options, resolve_storage
from rlhf_runtime.disk_space import with_cause
from rlhf_runtime.engines.world import World
from rlhf_runtime.errors import CheckpointFailed, StorageFailed

# Nested dictionaries of tensors and plain values.
State = dict[str, Any]


# Errors that torch raises if a checkpoint is of another model.
MISMATCH_ERRORS = (KeyError, RuntimeError, TypeError, ValueError)
# Time limit for the slowest rank. Ranks without progress are noticed elsewhere.
MAX_SAVE_TIME = timedelta(days=1)


class StagerPool:
    """Provides torch's stagers with memory for copies, one copy at a time."""

    def __init__(self, options: StagingOptions, keeps_memory: bool) -> None:
        self._options = options
        self._keeps_memory = keeps_memory
        self._kept: DefaultStager | None = None

    @staticmethod
    def for_device(device_type: str) -> StagerPool:
        """Return a pool for state on devices of this type: "cuda" or "cpu"."""
        pinned = device_type == "cuda"
        options = StagingOptions(
            use_pinned_memory=pinned,
            use_shared_memory=False,
            use_async_staging=False,
            use_non_blocking_copy=pinned,
        )
        return StagerPool(options, keeps_memory=pinned)

    def acquire(self) -> DefaultStager:
        """Return a stager for one copy; `release` must follow."""
        stager, self._kept = self._kept, None
        return stager or DefaultStager(self._options)

    def release(self, stager: DefaultStager) -> None:
        """Take a stager back after its copy was written or has failed."""
        # Pinning takes long, so pinned memory is kept for the next copy: as much as the state.
        if self._keeps_memory:
            self._kept = stager
        else:
            stager.close()  # it holds the copy, in a cycle


class PartwiseStager(AsyncStager):
    """Copies state part by part, so that its parts need not be in memory at the same time."""

    def __init__(self, parts: Iterable[Mapping[str, Any]], stager: DefaultStager) -> None:
        """
        Args:
            parts: without a common name.
            stager: makes the copies.
        """
        self._parts = parts
        self._stager = stager

    def stage(self, state_dict: Mapping[str, Any], **_: Any) -> dict[str, Any]:
        """Copy all parts, and add them to torch's own state."""
        staged = dict(state_dict)
        for part in self._parts:
            copied = self._stager.stage(dict(part))
            assert isinstance(copied, dict), "copies are made at once"
            staged |= copied
        return staged

    def synchronize_staging(self) -> None:
        """Do nothing: copies are complete when `stage` returns."""

    def close(self) -> None:
        """Do nothing: the pool owns the stager."""


class Saver:
    """Writes checkpoints of this rank's state, one at a time. Every rank of the world has one."""

    def __init__(self, world: World) -> None:
        # A group for the thread's collectives: they must not meet those of training.
        self._group = dist.new_group(backend="gloo", timeout=MAX_SAVE_TIME)
        self._staging = StagerPool.for_device(world.device.type)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._written: Future[dict[str, SavedFile]] | None = None

    def begin(self, parts: Iterable[State], address: str) -> None:
        """Copy the state and begin to write the copy. Collective. `finish` must follow, and reports
        failures.

        Args:
            parts: of the state; each is copied before the next is requested.
            address: destination.
        """
        assert self._written is None, "finish comes before begin"
        stager, writer = self._staging.acquire(), DigestingWriter(address)
        writing = async_save(
            {},
            storage_writer=writer,
            process_group=self._group,
            async_stager=PartwiseStager(parts, stager),
        )
        assert isinstance(writing, Future)  # the copy is made: only then training may go on
        self._written = self._thread.submit(self._files, writing, stager, writer)

    def finish(self) -> dict[str, SavedFile]:
        """Wait until the copy is written.

        Returns:
            The files that this rank wrote; empty if nothing was begun.

        Raises:
            CheckpointFailed: any rank could not write.
        """
        if self._written is None:
            return {}
        written, self._written = self._written, None
        return written.result()

    def _files(
        self, writing: Future[Any], stager: DefaultStager, writer: DigestingWriter
    ) -> dict[str, SavedFile]:
        try:
            writing.result()
            return writer.written
        except CheckpointException as error:
            writer.remove()
            causes = [cause for cause, _ in error.failures.values()]
            raise with_cause(_not_written(_causes(error)), *causes) from error
        except Exception as error:  # every file system has errors of its own
            writer.remove()
            text = f"{type(error).__name__}: {error}"
            raise with_cause(_not_written(text), error) from error
        finally:
            self._staging.release(stager)


def pool_addresses(address: str) -> list[str]:
    """Return the sorted addresses of the pools' folders in a checkpoint.

    Raises:
        StorageFailed: it cannot be read.
    """
    location = resolve_storage(address)
    try:
        names = [
            path.rstrip("/").rsplit("/", 1)[-1] for path in location.fs.ls(location.path, False)
        ]
    except Exception as error:  # every file system has errors of its own
        raise _not_read(address, f"{type(error).__name__}: {error}") from error
    return [f"{address}/{name}" for name in sorted(names) if name != RECORD_FILE]


def saved_keys(address: str) -> frozenset[str]:
    """Return all names in a checkpoint, nested names joined by dots.

    Raises:
        StorageFailed: it cannot be read.
    """
    return frozenset(saved_shapes(address))


def saved_shapes(address: str) -> dict[str, tuple[int, ...] | None]:
    """Return the full shape of every tensor in a checkpoint by name; None for other values.

    Raises:
        StorageFailed: it cannot be read.
    """
    try:
        metadata = FsspecReader(address, **filesystem_options(address)).read_metadata()
    except Exception as error:  # every file system has errors of its own
        raise _not_read(address, f"{type(error).__name__}: {error}") from error
    return {
        name: tuple(saved.size) if isinstance(saved, TensorStorageMetadata) else None
        for name, saved in metadata.state_dict_metadata.items()
    }


def load(state: State, address: str) -> None:
    """Load tensors in place, and plain values into their dictionaries. Collective.

    Raises:
        CheckpointFailed: the checkpoint is of another state.
        StorageFailed: it cannot be read.
    """
    _load(state, address, alone=False)


def load_without_world(state: State, address: str) -> None:
    """Load in one process, inside or outside of a world. Dtypes may differ from the saved ones; one
    saved chunk is in memory at a time."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled")  # as is meant
        _load(state, address, alone=True)


def _load(state: State, address: str, alone: bool) -> None:
    reader = FsspecReader(address, **filesystem_options(address))
    try:
        load_in_place(state, storage_reader=reader, no_dist=alone)
    except CheckpointException as error:
        causes = [cause for cause, _ in error.failures.values()]
        for cause in causes:
            if not isinstance(cause, Exception):  # an interruption, which torch catches as well
                raise cause from None
        if all(isinstance(cause, MISMATCH_ERRORS) for cause in causes):
            raise CheckpointFailed(f"{address} does not fit: {_causes(error)}") from error
        raise _not_read(address, _causes(error)) from error


def _not_written(got: str) -> CheckpointFailed:
    return CheckpointFailed(f"got {got}; free space, or correct checkpoint.storage")


def _not_read(address: str, got: str) -> StorageFailed:
    return StorageFailed(f"a checkpoint cannot be read: got {got} at {address}; see to the storage")


def _causes(error: CheckpointException) -> str:
    # Each text once; torch's own text has the stacks of all ranks.
    return "; ".join(dict.fromkeys(f"{type(e).__name__}: {e}" for e, _ in error.failures.values()))
