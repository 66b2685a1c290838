"""The checkpoints of a job under one address: begun, committed, found again, pruned.

A local checkpoint is written to a working folder, which is renamed once complete. Object stores
cannot rename: there the record, written last, makes it complete. The driver is the only writer of
names; ranks write files where `begin` says.

If two runs have the same address, the later one owns it (`claim`): the next checkpoint of the other
one is refused. Every run writes into folders of its own, so late files of a predecessor are in no
checkpoint. A killed run leaves no lock.
"""

from __future__ import annotations

import functools
import json
import os
import re
import socket
import uuid
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Concatenate, ParamSpec, TypeVar

from rlhf_runtime.checkpoint.record import RECORD_FILE, CheckpointRecord, SavedFile, new_digest
from rlhf_runtime.checkpoint.storage import resolve_storage
from rlhf_runtime.disk_space import free_bytes, is_disk_full, with_cause
from rlhf_runtime.durable_files import sync_path
from rlhf_runtime.errors import RuntimeFailure, StorageFailed, StorageInUse

# In object stores with the run's id; without it where folders are renamed.
_NAME = re.compile(r"step-(\d{8})(-[0-9a-f]{8})?")
_WORKING_PREFIX = ".saving-"
# Names the run that saves here.
OWNER_FILE = "owner.json"
_BLOCK_BYTES = 1 << 22
# Files that are checked concurrently.
_READERS = 4
# Programming errors, which are not the file system's.
_OWN_ERRORS = (AssertionError, AttributeError, NameError, TypeError)

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def is_checkpoint_name(name: str) -> bool:
    """True if a folder has the name of a checkpoint."""
    return _NAME.fullmatch(name) is not None


class CheckpointDamaged(ValueError):
    """A checkpoint is incomplete; the text names the file and what is wrong with it."""


def damaged_text(step: int, error: CheckpointDamaged) -> str:
    """Return the notice that another checkpoint is tried instead."""
    return f"the checkpoint of step {step} cannot be used: {error}; looking for another one"


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint."""

    address: str
    """Its folder."""
    record: CheckpointRecord


def _converting_storage_errors(
    method: Callable[Concatenate[CheckpointStore, Parameters], Result],
) -> Callable[Concatenate[CheckpointStore, Parameters], Result]:
    """Convert errors of file systems, which have their own types, to StorageFailed."""

    @functools.wraps(method)
    def wrapper(
        store: CheckpointStore, /, *args: Parameters.args, **kwargs: Parameters.kwargs
    ) -> Result:
        try:
            return method(store, *args, **kwargs)
        except (RuntimeFailure, CheckpointDamaged, *_OWN_ERRORS):
            raise
        except Exception as error:
            text = (
                f"the storage of checkpoints fails: got {type(error).__name__}: {error} at "
                f"{store.address}; fix what it names: address, credentials, permissions, network "
                "or space"
            )
            raise with_cause(StorageFailed(text), error) from error

    return wrapper


class CheckpointStore:
    """All checkpoints of one job.

    Raises, in every method:
        StorageFailed: the address cannot be reached, read or written, or is full.
    """

    def __init__(self, address: str) -> None:
        self.address = address.rstrip("/")
        location = resolve_storage(self.address)
        self._fs, self._root = location.fs, location.path
        self._renames, self._has_folders = location.is_local, location.has_folders
        self._run = uuid.uuid4().hex[:8]
        self._own = {"run": self._run, "host": socket.gethostname(), "process": os.getpid()}

    @_converting_storage_errors
    def check_writable(self) -> None:
        """Check that something can be written here, once the disk has space."""
        probe = f"{self._root}/.probe-{self._run}"
        try:
            self._make_folder(self._root)
            self._fs.pipe_file(probe, b"")
            self._fs.rm(probe)
        except OSError as error:
            # A run that needs space waits for it.
            if not is_disk_full(error):
                raise

    @_converting_storage_errors
    def claim(self) -> None:
        """Become the only run that saves here."""
        self._make_folder(self._root)
        self._fs.pipe_file(f"{self._root}/{OWNER_FILE}", json.dumps(self._own).encode())

    @_converting_storage_errors
    def begin(self, step: int) -> str:
        """Prepare an empty folder for a new checkpoint, and return its address.

        Raises:
            StorageInUse: another run saves here.
        """
        self._require_claim()
        name = self._working_name(step)
        self._remove(name)
        self._make_folder(f"{self._root}/{name}")
        return f"{self.address}/{name}"

    @_converting_storage_errors
    def commit(self, record: CheckpointRecord) -> Checkpoint:
        """Turn the files written since `begin` into the checkpoint of its step.

        Raises:
            StorageInUse: another run saves here.
        """
        self._require_claim()
        name, others = self._working_name(record.step), self._names().get(record.step, [])
        with self._fs.open(f"{self._root}/{name}/{RECORD_FILE}", "wb") as file:
            file.write(record.to_text().encode())
            if self._renames:
                file.flush()
                os.fsync(file.fileno())
        if self._renames:
            for file_name, saved in record.files.items():
                # Somebody may have deleted files while others were written.
                self._require_written(f"{name}/{file_name}", saved)
            for part in sorted({file.rpartition("/")[0] for file in record.files} | {""}):
                sync_path(f"{self._root}/{name}/{part}")
            final = f"step-{record.step:08d}"
            self._remove(final)
            # Rename last: a folder with a checkpoint's name is complete.
            os.rename(f"{self._root}/{name}", f"{self._root}/{final}")
            sync_path(self._root)
            return Checkpoint(f"{self.address}/{final}", record)
        # An earlier save of the same step, by another run.
        for other in others:
            if other != name:
                self._remove(other)
        return Checkpoint(f"{self.address}/{name}", record)

    @_converting_storage_errors
    def abandon(self, step: int) -> None:
        """Remove the files written since `begin`."""
        self._remove(self._working_name(step))

    @_converting_storage_errors
    def steps(self) -> list[int]:
        """Return the steps with a checkpoint, complete or not, newest first."""
        return sorted(self._names(), reverse=True)

    @_converting_storage_errors
    def read(self, step: int) -> Checkpoint:
        """Return the checkpoint of a step, after checking every byte.

        Raises:
            CheckpointDamaged: it is incomplete.
        """
        errors = []
        for name in self._names().get(step, []):
            try:
                return self._read(name)
            except CheckpointDamaged as error:
                errors.append(str(error))
        raise CheckpointDamaged("; ".join(dict.fromkeys(errors)) or "it was deleted")

    def newest(self, report: Callable[[int, CheckpointDamaged], None]) -> Checkpoint | None:
        """Return the newest complete checkpoint, after checking every byte; None if there is none.

        Args:
            report: called with each newer one that is incomplete.
        """
        for step in self.steps():
            try:
                return self.read(step)
            except CheckpointDamaged as error:
                report(step, error)
        return None

    @_converting_storage_errors
    def read_folder(self, name: str) -> Checkpoint:
        """Return the checkpoint in a folder, after checking every byte.

        Raises:
            CheckpointDamaged: it is incomplete.
        """
        return self._read(name)

    @_converting_storage_errors
    def record(self, step: int) -> CheckpointRecord | None:
        """Return the record of a step's checkpoint; None if it is damaged or incomplete."""
        for name in self._names().get(step, []):
            try:
                return self._record(name)
            except CheckpointDamaged:
                continue
        return None

    def records(self) -> Iterator[CheckpointRecord]:
        """Yield the records of all steps that have one, newest first."""
        # One by one: who needs the newest reads no others.
        for step in self.steps():
            record = self.record(step)
            if record is not None:
                yield record

    @_converting_storage_errors
    def remove(self, step: int) -> None:
        """Delete the checkpoint of a step.

        Raises:
            StorageInUse: another run saves here.
        """
        self._require_claim()
        for name in self._names().get(step, []):
            # The record first: half a checkpoint must not count.
            self._remove(f"{name}/{RECORD_FILE}")
            self._remove(name)

    @_converting_storage_errors
    def remove_unfinished(self, step: int, writing: Collection[int]) -> None:
        """Remove the working folders of this step and earlier ones.

        Args:
            step: the last one.
            writing: steps whose checkpoints this run is writing; they stay.

        Raises:
            StorageInUse: another run saves here.
        """
        self._require_claim()
        if self._renames:
            own = {self._working_name(number) for number in writing}
            for name in self._entries():
                saving = name.startswith(_WORKING_PREFIX) and _NAME.search(name)
                if saving and int(saving[1]) <= step and name not in own:
                    self._remove(name)

    @_converting_storage_errors
    def free_bytes(self) -> int | None:
        """Return the free space on the disk; None where it is unknown, as in object stores."""
        if not self._renames:
            return None
        with suppress(FileNotFoundError):
            return free_bytes(self._root)
        return None

    @_converting_storage_errors
    def written_bytes(self, step: int) -> int:
        """Return the bytes of the checkpoint that `begin` has begun, so far; on disks only."""
        total = 0
        for path in Path(self._root, self._working_name(step)).rglob("*"):
            with suppress(FileNotFoundError):  # renamed by a rank meanwhile
                total += path.stat().st_size
        return total

    @_converting_storage_errors
    def has_files(self, record: CheckpointRecord) -> bool:
        """True if all files of a checkpoint exist with their sizes. Contents are not read."""
        for name in self._names().get(record.step, []):
            try:
                for file_name, saved in record.files.items():
                    self._require_written(f"{name}/{file_name}", saved)
            except OSError:
                continue
            return True
        return False

    def _require_claim(self) -> None:
        """Check that no other run has claimed the address since.

        Raises:
            StorageInUse: another run has.
        """
        try:
            owner = json.loads(self._fs.cat_file(f"{self._root}/{OWNER_FILE}"))
        except (FileNotFoundError, ValueError):
            return  # deleted by hand, or never claimed
        if isinstance(owner, dict) and owner != self._own:
            raise StorageInUse(
                f"another run saves its checkpoints there: got {self.address}, claimed by process "
                f"{owner.get('process')} on {owner.get('host')} since this run began; stop one of "
                "the two, or give one another checkpoint.storage"
            )

    def _working_name(self, step: int) -> str:
        return (_WORKING_PREFIX if self._renames else "") + f"step-{step:08d}-{self._run}"

    def _names(self) -> dict[int, list[str]]:
        """Return the folders of checkpoints, complete or not, by step."""
        names: dict[int, list[str]] = {}
        for name in self._entries():
            if match := _NAME.fullmatch(name):
                names.setdefault(int(match[1]), []).append(name)
        return names

    def _entries(self) -> list[str]:
        try:
            paths = self._fs.ls(self._root, False)
        except FileNotFoundError:
            return []
        return sorted(path.rstrip("/").rsplit("/", 1)[-1] for path in paths)

    def _read(self, name: str) -> Checkpoint:
        record = self._record(name)
        with ThreadPoolExecutor(_READERS) as readers:
            checks = readers.map(
                lambda item: self._file_error(f"{self._root}/{name}/{item[0]}", item[1]),
                record.files.items(),
            )
            errors = [
                f"{file} {fault}" for file, fault in zip(record.files, checks, strict=True) if fault
            ]
        if errors:
            raise CheckpointDamaged("; ".join(errors))
        return Checkpoint(f"{self.address}/{name}", record)

    def _record(self, name: str) -> CheckpointRecord:
        try:
            with self._fs.open(f"{self._root}/{name}/{RECORD_FILE}", "rb") as file:
                text = file.read()
            return CheckpointRecord.from_text(text.decode())
        except FileNotFoundError:
            raise CheckpointDamaged(f"{RECORD_FILE} is missing: it was never finished") from None
        except ValueError as error:
            raise CheckpointDamaged(f"{RECORD_FILE} is damaged: {error}") from error

    def _require_written(self, name: str, saved: SavedFile) -> None:
        """Check that a written file still exists with its size.

        Raises:
            FileNotFoundError, OSError: it does not.
        """
        size = self._fs.size(f"{self._root}/{name}")
        if size != saved.num_bytes:
            raise OSError(f"{name} has {size} bytes instead of {saved.num_bytes}")

    def _make_folder(self, path: str) -> None:
        if self._has_folders:
            self._fs.makedirs(path, exist_ok=True)

    def _remove(self, name: str) -> None:
        with suppress(FileNotFoundError):
            self._fs.rm(f"{self._root}/{name}", recursive=True)

    def _file_error(self, path: str, saved: SavedFile) -> str:
        """Return what is wrong with a file; empty if nothing is."""
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


def _digest(file: IO[bytes]) -> str:
    state = new_digest()
    while block := file.read(_BLOCK_BYTES):
        state.update(block)
    return state.hexdigest()
