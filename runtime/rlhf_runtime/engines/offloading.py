"""What an engine keeps on the host while others need its device: a copy of its storages.

Storages shrink to nothing and grow again. Tensors stay the same objects, so views of them that
others hold, those of optimizers and of transfers, are as good afterwards as before.
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
    """Room on the host for the bytes of storages."""

    def write(self, contents: Sequence[torch.Tensor]) -> None:
        """Take bytes over; they may be lost afterwards."""

    def read(self, contents: Sequence[torch.Tensor]) -> None:
        """Begin to give back what was written last, of the same sizes."""

    def wait(self) -> None:
        """Let all that is computed from now on see what `read` gives back."""


class FileCopy:
    """For CPUs, where a copy in memory would save none: an unnamed file among temporary files.

    It is written and read rather than mapped: mapped pages would count as the process's own.
    """

    def __init__(self) -> None:
        self._file: BinaryIO | None = None

    def write(self, contents: Sequence[torch.Tensor]) -> None:
        """Write one after the other.

        Raises:
            NotEnoughResources: there is no room.
        """
        if not contents:
            return
        try:
            if self._file is None:
                made = tempfile.TemporaryFile(prefix="rlhf-offload-")  # noqa: SIM115  # it stays
                self._file = cast(BinaryIO, made)
                weakref.finalize(self, made.close)
            self._file.seek(0)
            for each in contents:
                self._file.write(_buffer(each))
            self._file.truncate()
            self._file.flush()
        except OSError as error:
            size = sum(each.nbytes for each in contents)
            raise NotEnoughResources(
                f"a role cannot be offloaded: got {error} for {size} bytes in "
                f"{tempfile.gettempdir()}, allowed a folder with that much room; set TMPDIR to "
                "another one, or training.offload to Never"
            ) from error

    def read(self, contents: Sequence[torch.Tensor]) -> None:
        """Read them in the same order, and give the file's room back."""
        if not contents:
            return
        assert self._file is not None, "write comes before read"
        self._file.seek(0)
        for each in contents:
            got = self._file.readinto(_buffer(each))  # type: ignore[attr-defined]
            assert got == each.nbytes, "the file holds what was written"
        self._file.truncate(0)

    def wait(self) -> None:
        """Everything is there when `read` returns."""


def _buffer(contents: torch.Tensor) -> memoryview:
    """The bytes themselves. A tensor's `numpy()` would keep its storage from ever changing its size
    again."""
    return memoryview((ctypes.c_ubyte * contents.nbytes).from_address(contents.data_ptr()))


class PinnedCopy:
    """For GPUs: pinned memory, which stays for the next time; copies run on a stream of their
    own."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._buffers: list[torch.Tensor] = []
        self._is_read: torch.cuda.Event | None = None

    def write(self, contents: Sequence[torch.Tensor]) -> None:
        """Copy when all that was computed before is there, and wait for it."""
        if [each.nbytes for each in self._buffers] != [each.nbytes for each in contents]:
            self._buffers.clear()
            self._buffers += [torch.empty_like(c, device="cpu", pin_memory=True) for c in contents]
        torch.cuda.synchronize(self._stream.device)  # other streams may still use the storages
        with torch.cuda.stream(self._stream):
            for buffer, each in zip(self._buffers, contents, strict=True):
                buffer.copy_(each, non_blocking=True)
        self._stream.synchronize()

    def read(self, contents: Sequence[torch.Tensor]) -> None:
        """Begin to copy; what the storages' memory was used for before comes first."""
        self._stream.wait_stream(torch.cuda.current_stream(self._stream.device))
        with torch.cuda.stream(self._stream):
            for buffer, each in zip(self._buffers, contents, strict=True):
                each.copy_(buffer, non_blocking=True)
            self._is_read = self._stream.record_event()

    def wait(self) -> None:
        """The current stream waits, the host does not."""
        if self._is_read is not None:
            torch.cuda.current_stream(self._stream.device).wait_event(self._is_read)
            self._is_read = None


class Offloading:
    """Whether an engine's storages are on its device or on the host, and the way between."""

    def __init__(self, device: torch.device) -> None:
        self._host: HostCopy = PinnedCopy(device) if device.type == "cuda" else FileCopy()
        self._kept: Shrunk = []
        self._lost: Shrunk = []
        self.is_away = False
        """Whether they are on the host."""

    def offload(self, kept: Iterable[torch.Tensor], lost: Iterable[torch.Tensor] = ()) -> None:
        """Give device memory back, unless that was done.

        Args:
            kept: whose storages come back as they were.
            lost: whose storages come back with whatever values; none of them is one of `kept`.

        Raises:
            NotEnoughResources: the host has no room; nothing was given back.
        """
        if self.is_away:
            return
        self._host.wait()
        kept_storages = storages_of(kept)
        self._host.write([_contents(storage) for storage in kept_storages])
        self._kept, self._lost = shrink(kept_storages), shrink(storages_of(lost))
        self.is_away = True
        give_free_pages_back()

    def load(self) -> None:
        """Take the memory again and begin to fill it, unless that was done."""
        if not self.is_away:
            return
        kept = [storage for storage, _ in self._kept]
        grow(self._kept)
        grow(self._lost)
        self._host.read([_contents(storage) for storage in kept])
        self.is_away = False

    def require(self) -> None:
        """Let what follows on the current stream find everything on the device.

        Raises:
            NotLoaded: it is on the host.
        """
        if self.is_away:
            raise NotLoaded(
                "weights or optimizer of a role have left the device: got a call that needs them "
                "there, allowed calls after a load; the plan lacks a load before this call"
            )
        self._host.wait()


Shrunk = list[tuple[torch.UntypedStorage, int]]
"""Storages without memory, with the bytes that they had."""


def shrink(storages: Iterable[torch.UntypedStorage]) -> Shrunk:
    """Give the memory of storages back; whatever views them stays valid, without contents."""
    sizes = [(storage, storage.nbytes()) for storage in storages]
    for storage, _ in sizes:
        storage.resize_(0)
    return sizes


def grow(shrunk: Shrunk) -> None:
    """Take it again, with whatever is in it; nothing is left to do afterwards."""
    for storage, size in shrunk:
        storage.resize_(size)
    shrunk.clear()


def storages_of(tensors: Iterable[torch.Tensor]) -> list[torch.UntypedStorage]:
    """The storages of a rank's own parts of tensors, each once, that have memory."""
    locals_ = (each.to_local() if isinstance(each, DTensor) else each for each in tensors)
    found = {each.untyped_storage().data_ptr(): each.untyped_storage() for each in locals_}
    return [storage for storage in found.values() if storage.nbytes()]


def _contents(storage: torch.UntypedStorage) -> torch.Tensor:
    """uint8[bytes]: a view of all of a storage."""
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


def device_bytes(tensors: Iterable[torch.Tensor]) -> int:
    """Bytes of a rank's own parts of tensors, as far as they are on its device."""
    locals_ = (each.to_local() if isinstance(each, DTensor) else each for each in tensors)
    return sum(each.nbytes for each in locals_ if each.untyped_storage().nbytes())


@contextmanager
def on_device(*engines: TrainingEngine) -> Iterator[None]:
    """Have engines on the device, for what no call of a plan does: those that were offloaded are so
    again afterwards. Collective."""
    away = [(each, each.offloaded) for each in engines]
    away = [(each, depth) for each, depth in away if depth is not OffloadDepth.NOTHING]
    for engine, _ in away:
        engine.load()
    try:
        yield
    finally:
        for engine, depth in away:
            engine.offload(depth)
