"""Offloading: copies an engine's storages to the host while other roles need its device.

Storages shrink to nothing and grow again. Tensors stay the same objects, so that other views of
them, such as those of optimizers and transfers, stay valid.
"""

from __future__ import annotations

import ctypes
import tempfile
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, BinaryIO, Protocol, cast

import torch
from torch.distributed.tensor import DTensor

from rlhf_api.plan import OffloadDepth
from rlhf_runtime.engines.host_memory import give_free_pages_back
from rlhf_runtime.errors import NotEnoughResources, NotLoaded

if TYPE_CHECKING:
    from rlhf_runtime.engines.training import TrainingEngine


class HostCopy(Protocol):
    """A copy on the host of the bytes of storages."""

    def write(self, contents: Sequence[torch.Tensor]) -> None:
        """Copy bytes from storages, which may lose them afterwards."""

    def read(self, contents: Sequence[torch.Tensor]) -> None:
        """Start to copy the last written bytes into storages of the same sizes."""

    def wait(self) -> None:
        """Make later computations wait for `read`."""


class FileCopy:
    """A copy in an unnamed temporary file, for CPUs."""

    # A copy in memory would save none there. The file is written and read, not mapped: mapped pages
    # would count as memory of the process.

    def __init__(self) -> None:
        self._file: BinaryIO | None = None

    def write(self, contents: Sequence[torch.Tensor]) -> None:
        """Write the storages one after the other.

        Raises:
            NotEnoughResources: the file system is full or not writable.
        """
        if not contents:
            return
        try:
            if self._file is None:
                file = tempfile.TemporaryFile(prefix="rlhf-offload-")  # noqa: SIM115  # stays open
                self._file = cast(BinaryIO, file)
                weakref.finalize(self, file.close)
            self._file.seek(0)
            for tensor in contents:
                self._file.write(_buffer(tensor))
            self._file.truncate()
            self._file.flush()
        except OSError as error:
            size = sum(tensor.nbytes for tensor in contents)
            raise NotEnoughResources(
                f"a role cannot be offloaded: got {error} for {size} bytes in "
                f"{tempfile.gettempdir()}, allowed a folder with that much free space; set TMPDIR "
                "to another one, or training.offload to Never"
            ) from error

    def read(self, contents: Sequence[torch.Tensor]) -> None:
        """Read the storages in the same order, and free the file's disk space."""
        if not contents:
            return
        assert self._file is not None, "write comes before read"
        self._file.seek(0)
        for tensor in contents:
            num_bytes = self._file.readinto(_buffer(tensor))  # type: ignore[attr-defined]
            assert num_bytes == tensor.nbytes, "the file has all written bytes"
        self._file.truncate(0)

    def wait(self) -> None:
        """No-op: `read` returns when it is complete."""


def _buffer(contents: torch.Tensor) -> memoryview:
    # Not `numpy()`: that would keep the tensor's storage from ever changing its size again.
    return memoryview((ctypes.c_ubyte * contents.nbytes).from_address(contents.data_ptr()))


class PinnedCopy:
    """A copy in pinned memory, for GPUs; the memory is reused, copies run on their own stream."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._buffers: list[torch.Tensor] = []
        self._is_read: torch.cuda.Event | None = None

    def write(self, contents: Sequence[torch.Tensor]) -> None:
        """Wait for earlier computations, copy, and wait for the copy."""
        if [buffer.nbytes for buffer in self._buffers] != [source.nbytes for source in contents]:
            self._buffers.clear()
            self._buffers += [torch.empty_like(c, device="cpu", pin_memory=True) for c in contents]
        torch.cuda.synchronize(self._stream.device)  # other streams may still use the storages
        with torch.cuda.stream(self._stream):
            for buffer, source in zip(self._buffers, contents, strict=True):
                buffer.copy_(source, non_blocking=True)
        self._stream.synchronize()

    def read(self, contents: Sequence[torch.Tensor]) -> None:
        """Start to copy."""
        # The allocator may have lent this memory to work that is still queued on the stream.
        self._stream.wait_stream(torch.cuda.current_stream(self._stream.device))
        with torch.cuda.stream(self._stream):
            for buffer, target in zip(self._buffers, contents, strict=True):
                target.copy_(buffer, non_blocking=True)
            self._is_read = self._stream.record_event()

    def wait(self) -> None:
        """Make the current stream wait; the host does not."""
        if self._is_read is not None:
            torch.cuda.current_stream(self._stream.device).wait_event(self._is_read)
            self._is_read = None


class Offloading:
    """Moves an engine's storages between its device and the host."""

    def __init__(self, device: torch.device) -> None:
        self._host: HostCopy = PinnedCopy(device) if device.type == "cuda" else FileCopy()
        self._kept: Shrunk = []
        self._lost: Shrunk = []
        self.is_offloaded = False
        """True if the storages are on the host."""

    def offload(self, kept: Iterable[torch.Tensor], lost: Iterable[torch.Tensor] = ()) -> None:
        """Free device memory; no-op if that was done.

        Args:
            kept: tensors whose storages are restored with their values.
            lost: tensors whose storages come back with undefined values; disjoint from `kept`.

        Raises:
            NotEnoughResources: the host has too little space; nothing was freed.
        """
        if self.is_offloaded:
            return
        self._host.wait()
        kept_storages = distinct_storages(kept)
        self._host.write([_contents(storage) for storage in kept_storages])
        self._kept, self._lost = shrink(kept_storages), shrink(distinct_storages(lost))
        self.is_offloaded = True
        give_free_pages_back()

    def load(self) -> None:
        """Allocate the memory again and start to fill it; no-op if that was done."""
        if not self.is_offloaded:
            return
        kept = [storage for storage, _ in self._kept]
        grow(self._kept)
        grow(self._lost)
        self._host.read([_contents(storage) for storage in kept])
        self.is_offloaded = False

    def require(self) -> None:
        """Make the current stream wait until everything is on the device.

        Raises:
            NotLoaded: it is on the host.
        """
        if self.is_offloaded:
            raise NotLoaded(
                "weights or optimizer of a role have left the device: got a call that needs them "
                "there, allowed calls after a load; the plan lacks a load before this call"
            )
        self._host.wait()


Shrunk = list[tuple[torch.UntypedStorage, int]]
"""Storages without memory, with the bytes that they had."""


def shrink(storages: Iterable[torch.UntypedStorage]) -> Shrunk:
    """Free the memory of storages; their views stay valid, without contents."""
    sizes = [(storage, storage.nbytes()) for storage in storages]
    for storage, _ in sizes:
        storage.resize_(0)
    return sizes


def grow(shrunk: Shrunk) -> None:
    """Allocate the memory again, with undefined contents, and clear the list."""
    for storage, size in shrunk:
        storage.resize_(size)
    shrunk.clear()


def distinct_storages(tensors: Iterable[torch.Tensor]) -> list[torch.UntypedStorage]:
    """The distinct non-empty storages of a rank's own parts of tensors."""
    storages = [tensor.untyped_storage() for tensor in _local_tensors(tensors)]
    by_address = {storage.data_ptr(): storage for storage in storages}
    return [storage for storage in by_address.values() if storage.nbytes()]


def _local_tensors(tensors: Iterable[torch.Tensor]) -> Iterator[torch.Tensor]:
    return (tensor.to_local() if isinstance(tensor, DTensor) else tensor for tensor in tensors)


def _contents(storage: torch.UntypedStorage) -> torch.Tensor:
    """uint8[bytes]: a view of a complete storage."""
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


def device_bytes(tensors: Iterable[torch.Tensor]) -> int:
    """Bytes of a rank's own parts of tensors, without offloaded ones."""
    local = _local_tensors(tensors)
    return sum(tensor.nbytes for tensor in local if tensor.untyped_storage().nbytes())


@contextmanager
def on_device(*engines: TrainingEngine) -> Iterator[None]:
    """Load engines for work outside of a plan's calls, and offload them again. Collective."""
    depths = [(engine, engine.offloaded) for engine in engines]
    offloaded = [(engine, depth) for engine, depth in depths if depth is not OffloadDepth.NOTHING]
    for engine, _ in offloaded:
        engine.load()
    try:
        yield
    finally:
        for engine, depth in offloaded:
            engine.offload(depth)
