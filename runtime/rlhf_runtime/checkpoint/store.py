"""The checkpoints of a job under one address: begun, committed, found again, pruned.

A local checkpoint is written aside and renamed when it is whole. Object stores cannot rename: there
the record, which is written last, makes it one. The driver is the only writer of names; ranks write
files where `begin` says.
"""

from __future__ import annotations

import hashlib
import os
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import isnan, nan
from typing import IO

from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem

from rlhf_runtime.checkpoint.record import RECORD_FILE, CheckpointRecord, SavedFile

_NAME = re.compile(r"step-(\d{8})")
_ASIDE = ".saving-"
_BLOCK_BYTES = 1 << 22
_READERS = 4
"""Files that are checked at the same time."""


@dataclass(frozen=True)
class Checkpoint:
    """A whole checkpoint."""

    address: str
    """Where its files are."""
    record: CheckpointRecord


class CheckpointStore:
    """All checkpoints of one job.

    Raises, in every method:
        OSError: the place cannot be read or written, or is full.
    """

    def __init__(self, address: str) -> None:
        self.address = address.rstrip("/")
        self._fs, self._root = url_to_fs(self.address)
        self._is_local = isinstance(self._fs, LocalFileSystem)

    def begin(self, step: int) -> str:
        """The address for the files of a new checkpoint; what an earlier attempt left is gone."""
        name = self._working_name(step)
        self._remove(name)
        self._fs.makedirs(f"{self._root}/{name}", exist_ok=True)
        return f"{self.address}/{name}"

    def commit(self, record: CheckpointRecord) -> Checkpoint:
        """Make what was written since `begin` the checkpoint of its step."""
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

    def abandon(self, step: int) -> None:
        """Remove what was written since `begin`."""
        self._remove(self._working_name(step))

    def steps(self) -> list[int]:
        """Steps with a checkpoint, whole or not, the newest first."""
        if not self._fs.isdir(self._root):
            return []
        self._fs.invalidate_cache(self._root)
        names = (path.rstrip("/").rsplit("/", 1)[-1] for path in self._fs.ls(self._root, False))
        found = (match for match in map(_NAME.fullmatch, names) if match is not None)
        return sorted((int(match[1]) for match in found), reverse=True)

    def read(self, step: int) -> Checkpoint:
        """The checkpoint of a step, after a look at every byte.

        Raises:
            ValueError: it is not whole; the text names the file and what is wrong with it.
        """
        name = _final_name(step)
        try:
            record = self._record(name)
        except FileNotFoundError:
            raise ValueError(f"{RECORD_FILE} is missing: it was never finished") from None
        except ValueError as error:
            raise ValueError(f"{RECORD_FILE} is damaged: {error}") from error
        with ThreadPoolExecutor(_READERS) as readers:
            checks = readers.map(
                lambda item: self._fault(f"{self._root}/{name}/{item[0]}", item[1]),
                record.files.items(),
            )
            faults = [
                f"{file} {fault}" for file, fault in zip(record.files, checks, strict=True) if fault
            ]
        if faults:
            raise ValueError("; ".join(faults))
        return Checkpoint(f"{self.address}/{name}", record)

    def record(self, step: int) -> CheckpointRecord | None:
        """What the checkpoint of a step says about itself; None if it is damaged or not whole."""
        try:
            return self._record(_final_name(step))
        except (FileNotFoundError, ValueError):
            return None

    def remove(self, step: int) -> None:
        """Delete the checkpoint of a step; the record goes first, so that no half counts."""
        path = f"{self._root}/{_final_name(step)}/{RECORD_FILE}"
        if self._fs.exists(path):
            self._fs.rm(path)
        self._remove(_final_name(step))

    def _working_name(self, step: int) -> str:
        return (_ASIDE if self._is_local else "") + _final_name(step)

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


def describe_files(address: str, prefix: str) -> dict[str, SavedFile]:
    """Sizes and digests of the files at an address whose names begin with a prefix."""
    fs, root = url_to_fs(address)
    fs.invalidate_cache(root)
    described = {}
    for path in sorted(fs.ls(root, False)):
        name = path.rsplit("/", 1)[-1]
        if name.startswith(prefix):
            with fs.open(path, "rb") as file:
                described[name] = SavedFile(fs.size(path), _digest(file))
    return described


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
    state = hashlib.blake2b(digest_size=16)
    while block := file.read(_BLOCK_BYTES):
        state.update(block)
    return state.hexdigest()


def _sync_folder(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
