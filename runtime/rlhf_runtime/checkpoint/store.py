"""The checkpoints of a job under one address: begun, committed, found again, pruned.

A local checkpoint is written aside and renamed when it is whole. Object stores cannot rename: there
the record, which is written last, makes it one. The driver is the only writer of names; ranks write
files where `begin` says.

Where two runs are given the same address, the one that has come last has it (`claim`): the other
one's next checkpoint is refused. So a run that was believed dead cannot overwrite what its
successor has saved, and one that was killed leaves no lock behind.
"""

from __future__ import annotations

import functools
import json
import os
import re
import socket
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import isnan, nan
from typing import IO, Concatenate, ParamSpec, TypeVar

from fsspec.implementations.local import LocalFileSystem

from rlhf_runtime.checkpoint.places import place_of
from rlhf_runtime.checkpoint.record import RECORD_FILE, CheckpointRecord, SavedFile, new_digest
from rlhf_runtime.errors import RuntimeFailure, StorageFailed, StorageTaken

_NAME = re.compile(r"step-(\d{8})")
_ASIDE = ".saving-"
OWNER_FILE = "owner.json"
"""Names the run that saves here."""
_BLOCK_BYTES = 1 << 22
_READERS = 4
"""Files that are checked at the same time."""


Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


class Damaged(ValueError):
    """A checkpoint is not whole; the text names the file and what is wrong with it."""


@dataclass(frozen=True)
class Checkpoint:
    """A whole checkpoint."""

    address: str
    """Where its files are."""
    record: CheckpointRecord


def _reaching(
    method: Callable[Concatenate[CheckpointStore, Parameters], Result],
) -> Callable[Concatenate[CheckpointStore, Parameters], Result]:
    """Every file system has errors of its own: make one of ours of them."""

    @functools.wraps(method)
    def told(
        store: CheckpointStore, /, *args: Parameters.args, **kwargs: Parameters.kwargs
    ) -> Result:
        try:
            return method(store, *args, **kwargs)
        except (RuntimeFailure, Damaged):
            raise
        except Exception as error:
            raise StorageFailed(
                f"the storage of checkpoints fails: got {type(error).__name__}: {error} at "
                f"{store.address}; free space, or correct the address, its permissions or the "
                "network"
            ) from error

    return told


class CheckpointStore:
    """All checkpoints of one job.

    Raises, in every method:
        StorageFailed: the place cannot be reached, read or written, or is full.
    """

    def __init__(self, address: str) -> None:
        self.address = address.rstrip("/")
        self._fs, self._root = place_of(self.address)
        self._is_local = isinstance(self._fs, LocalFileSystem)
        self._own = {"run": uuid.uuid4().hex, "host": socket.gethostname(), "process": os.getpid()}

    @_reaching
    def claim(self) -> None:
        """Save here from now on, and nobody who has claimed it before."""
        self._fs.makedirs(self._root, exist_ok=True)
        self._fs.pipe_file(f"{self._root}/{OWNER_FILE}", json.dumps(self._own).encode())

    def _require_claim(self) -> None:
        """Check that nobody has claimed it since.

        Raises:
            StorageTaken: somebody has.
        """
        try:
            owner = json.loads(self._fs.cat_file(f"{self._root}/{OWNER_FILE}"))
        except (FileNotFoundError, ValueError):
            return  # deleted by hand, or never claimed
        if owner != self._own:
            raise StorageTaken(
                f"another run saves its checkpoints there: got {self.address}, claimed by process "
                f"{owner.get('process')} on {owner.get('host')} since this run began; stop one of "
                "the two, or give one another checkpoint.storage"
            )

    @_reaching
    def begin(self, step: int) -> str:
        """The address for the files of a new checkpoint; what an earlier attempt left is gone.

        Raises:
            StorageTaken: another run saves here.
        """
        self._require_claim()
        name = self._working_name(step)
        self._remove(name)
        self._fs.makedirs(f"{self._root}/{name}", exist_ok=True)
        return f"{self.address}/{name}"

    @_reaching
    def commit(self, record: CheckpointRecord) -> Checkpoint:
        """Make what was written since `begin` the checkpoint of its step.

        Raises:
            StorageTaken: another run saves here.
        """
        self._require_claim()
        name, final = self._working_name(record.step), _final_name(record.step)
        with self._fs.open(f"{self._root}/{name}/{RECORD_FILE}", "wb") as file:
            file.write(record.to_text().encode())
            if self._is_local:
                file.flush()
                os.fsync(file.fileno())
        if name != final:
            self._remove(final)
            os.rename(f"{self._root}/{name}", f"{self._root}/{final}")
            _sync_folder(self._root)
        return Checkpoint(f"{self.address}/{final}", record)

    @_reaching
    def abandon(self, step: int) -> None:
        """Remove what was written since `begin`."""
        self._remove(self._working_name(step))

    @_reaching
    def steps(self) -> list[int]:
        """Steps with a checkpoint, whole or not, the newest first."""
        if not self._fs.isdir(self._root):
            return []
        names = (path.rstrip("/").rsplit("/", 1)[-1] for path in self._fs.ls(self._root, False))
        found = (match for match in map(_NAME.fullmatch, names) if match is not None)
        return sorted((int(match[1]) for match in found), reverse=True)

    @_reaching
    def read(self, step: int) -> Checkpoint:
        """The checkpoint of a step, after a look at every byte.

        Raises:
            Damaged: it is not whole.
        """
        name = _final_name(step)
        try:
            record = self._record(name)
        except FileNotFoundError:
            raise Damaged(f"{RECORD_FILE} is missing: it was never finished") from None
        except ValueError as error:
            raise Damaged(f"{RECORD_FILE} is damaged: {error}") from error
        with ThreadPoolExecutor(_READERS) as readers:
            checks = readers.map(
                lambda item: self._fault(f"{self._root}/{name}/{item[0]}", item[1]),
                record.files.items(),
            )
            faults = [
                f"{file} {fault}" for file, fault in zip(record.files, checks, strict=True) if fault
            ]
        if faults:
            raise Damaged("; ".join(faults))
        return Checkpoint(f"{self.address}/{name}", record)

    @_reaching
    def record(self, step: int) -> CheckpointRecord | None:
        """What the checkpoint of a step says about itself; None if it is damaged or not whole."""
        try:
            return self._record(_final_name(step))
        except (FileNotFoundError, ValueError):
            return None

    @_reaching
    def remove(self, step: int) -> None:
        """Delete the checkpoint of a step; the record goes first, so that no half counts."""
        path = f"{self._root}/{_final_name(step)}/{RECORD_FILE}"
        if self._fs.exists(path):
            self._fs.rm(path)
        self._remove(_final_name(step))

    def _working_name(self, step: int) -> str:
        return (_ASIDE if self._is_local else "") + _final_name(step)

    @_reaching
    def sweep(self, step: int) -> None:
        """Remove what attempts to save earlier steps have left."""
        if self._is_local:
            for path in self._fs.ls(self._root, False):
                name = path.rstrip("/").rsplit("/", 1)[-1]
                if name.startswith(_ASIDE) and name < _ASIDE + _final_name(step):
                    self._remove(name)

    def _record(self, name: str) -> CheckpointRecord:
        with self._fs.open(f"{self._root}/{name}/{RECORD_FILE}", "rb") as file:
            return CheckpointRecord.of_text(file.read().decode())

    def _remove(self, name: str) -> None:
        path = f"{self._root}/{name}"
        if self._fs.exists(path):
            self._fs.rm(path, recursive=True)

    def _fault(self, path: str, saved: SavedFile) -> str:
        """What is wrong with a file; empty if nothing is."""
        try:
            size = self._fs.size(path)
            if size != saved.num_bytes:
                return f"has {size} bytes instead of {saved.num_bytes}"
            with self._fs.open(path, "rb") as file:
                if _digest(file) != saved.digest:
                    return "has other contents than were written"
        except FileNotFoundError:
            return "is missing"
        return ""


def kept_steps(records: list[CheckpointRecord], keep_last: int, best_by: str | None) -> set[int]:
    """Steps whose checkpoints stay: the newest, and the one with the largest metric. Pure.

    Args:
        records: of all checkpoints.
        keep_last: how many of the newest.
        best_by: a held-out metric; None: no best one is kept.
    """
    newest = sorted((record.step for record in records), reverse=True)[:keep_last]
    measured = [(record.metrics.get(best_by or "", nan), record.step) for record in records]
    best = max(((value, step) for value, step in measured if not isnan(value)), default=None)
    return {*newest, *([] if best is None else [best[1]])}


def _final_name(step: int) -> str:
    return f"step-{step:08d}"


def _digest(file: IO[bytes]) -> str:
    state = new_digest()
    while block := file.read(_BLOCK_BYTES):
        state.update(block)
    return state.hexdigest()


def _sync_folder(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
