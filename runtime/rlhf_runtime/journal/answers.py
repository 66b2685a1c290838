"""The journal of one reward host: answers of earlier attempts are read, new ones are written."""

from __future__ import annotations

import os
import re
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import IO, Any, NamedTuple

from rlhf_api.spec.checkpoint import JournalMode
from rlhf_runtime.durable_files import sync_path
from rlhf_runtime.journal.disk import cannot_record, make_folder
from rlhf_runtime.journal.entries import Entry, Key, read_entries
from rlhf_runtime.journal.errors import JournalMismatch
from rlhf_runtime.journal.folder import Attempt, Position, pass_folder

# Passes whose answers are in memory, as they overlap.
MAX_PASSES = 4
_FILE_NAME = re.compile(r"([0-9]+)-.*\.jsonl")


class CallScope(NamedTuple):
    """A call, in the journal."""

    position: Position
    """Position of its pass."""
    repetition: int
    """Earlier passes at this position."""
    call: str
    round: int
    """Round of `flow.repeat`, from 0."""


class AnswerJournal:
    """The answers of one process, in this attempt and in earlier ones. Thread-safe."""

    def __init__(self, attempt: Attempt, process: str) -> None:
        """
        Args:
            attempt: of the workers.
            process: name of this process, unique in the attempt.
        """
        self._attempt = attempt
        self._file_name = f"{attempt.number:06d}-{process.replace(' ', '-')}.jsonl"
        self._lock = Lock()
        self._passes: OrderedDict[Position, _PassAnswers] = OrderedDict()

    @property
    def code(self) -> str:
        """Digest of the user's code."""
        return self._attempt.code

    def call_answers(self, scope: CallScope, rows: Sequence[int]) -> CallAnswers:
        """Return the answers about some rows of a call."""
        with self._lock:
            return CallAnswers(self._attempt, self._open(scope.position), scope, rows)

    def has_earlier(self, scope: CallScope) -> bool:
        """True if an earlier attempt has answers about a call."""
        with self._lock:
            return self._open(scope.position).has_earlier(scope[1:])

    def _open(self, position: Position) -> _PassAnswers:
        if position not in self._passes:
            folder = pass_folder(self._attempt.folder, position)
            self._passes[position] = _PassAnswers(folder, self._file_name, self._attempt.number)
            while len(self._passes) > MAX_PASSES:
                self._passes.popitem(last=False)
        self._passes.move_to_end(position)
        return self._passes[position]


@dataclass
class CallAnswers:
    """The answers about the rows of one call."""

    attempt: Attempt
    _pass_answers: _PassAnswers
    _scope: CallScope
    _rows: Sequence[int]
    num_read: int = 0
    """Answers of earlier attempts that were read."""
    num_different: int = 0
    """Questions that differ from those of earlier attempts."""
    _provisional: list[Entry] = field(default_factory=list)

    @property
    def damage_notices(self) -> tuple[str, ...]:
        """Texts for users about files of earlier attempts that have damaged lines."""
        return tuple(
            f"{file} has damaged lines: the answers in them are asked for again"
            for file in self._pass_answers.damaged
        )

    def find(self, party: str, row: int, question: Callable[[], str], description: str) -> Any:
        """Return the answer of an earlier attempt; None without one.

        Args:
            party: name of the outside party.
            row: position in the call's rows.
            question: returns the digest of the question.
            description: of the question, for messages.

        Raises:
            JournalMismatch: an attempt with the same settings has asked another question here.
        """
        earlier = self._pass_answers.find(self._key(party, row))
        if not earlier:
            return None
        asked = question()
        for _, entry in reversed(earlier):
            if entry.question == asked:
                self.num_read += 1
                return entry.answer
        since = self.attempt.comparable_since
        is_comparable = any(number >= since for number, _ in earlier)
        if self.attempt.mode is JournalMode.EXACT and is_comparable:
            raise JournalMismatch(
                f"step {self._scope.position.step} runs again, and asks {party} another question "
                f"than before: got {description}, allowed what the interrupted attempt has asked, "
                "because manifest, devices, code and versions are the same. Data or models were "
                "changed, files of the journal are missing, or something in the job is not "
                "deterministic. Set checkpoint.journal to AskAgain to ask again: the numbers are "
                "then not those of an undisturbed job"
            )
        self.num_different += 1
        return None

    def add(self, party: str, row: int, question: str, answer: Any, is_final: bool) -> None:
        """Write an answer. An error of the disk is kept for `sync`.

        Args:
            party: name of the outside party.
            row: position in the call's rows.
            question: digest of the question.
            answer: a JSON value.
            is_final: False: it counts only if the call is completed, and is written by `sync`.
        """
        entry = Entry(self._key(party, row), question, answer)
        if is_final:
            self._pass_answers.add(entry)
        else:
            self._provisional.append(entry)

    def include(self, other: CallAnswers) -> None:
        """Take over the answers of some of the rows that count only if the call is completed."""
        self._provisional += other._provisional

    def sync(self) -> None:
        """Write the rest, and wait until all answers are on the disk.

        Raises:
            CannotRecord: some could not be written.
        """
        # Other threads may add some meanwhile: these wait for the next call.
        entries, self._provisional = self._provisional, []
        for entry in entries:
            self._pass_answers.add(entry)
        self._pass_answers.sync()

    def _key(self, party: str, row: int) -> Key:
        return (*self._scope[1:], party, int(self._rows[row]))


class _PassAnswers:
    """The answers to one pass."""

    def __init__(self, folder: Path, file_name: str, attempt: int) -> None:
        """Read the answers of earlier attempts."""
        self._path = folder / file_name
        self._lock = Lock()
        self._file: IO[bytes] | None = None
        self._error: OSError | None = None
        self._earlier: dict[Key, list[tuple[int, Entry]]] = {}
        # Files with damaged lines.
        self.damaged: list[Path] = []
        # By attempt: of two answers to a question the later one was used.
        for path in sorted(folder.glob("*.jsonl")) if attempt > 1 else ():
            match = _FILE_NAME.fullmatch(path.name)
            if match is not None and int(match[1]) < attempt and path.is_file():
                self._read(path, int(match[1]))

    def _read(self, path: Path, attempt: int) -> None:
        """Read the answers of an earlier attempt."""
        entries = list(read_entries(path.read_bytes()))
        for entry in entries:
            if entry is not None:
                self._earlier.setdefault(entry.key, []).append((attempt, entry))
        # The last line is incomplete if the process was killed.
        if None in entries[:-1]:
            self.damaged.append(path)

    def find(self, key: Key) -> Sequence[tuple[int, Entry]]:
        """Return the attempts and answers of a key, in order."""
        return self._earlier.get(key, ())

    def has_earlier(self, call: Key) -> bool:
        """True if there are answers about a call, by the beginning of their keys."""
        return any(key[: len(call)] == call for key in self._earlier)

    def add(self, entry: Entry) -> None:
        """Append an answer."""
        with self._lock:
            # After an error a line may be incomplete; nothing may follow it.
            if self._error is not None:
                return
            try:
                if self._file is None:
                    self._file = self._open()
                rest = memoryview(entry.to_line())
                while rest:
                    rest = rest[self._file.write(rest) :]
            except OSError as error:
                self._error = error

    def _open(self) -> IO[bytes]:
        make_folder(self._path.parent)
        is_new = not self._path.exists()
        # Without a buffer: answers survive the end of this process.
        file = self._path.open("ab", buffering=0)
        if is_new:
            sync_path(self._path.parent)
        return file

    def sync(self) -> None:
        """Wait until the disk has everything: answers survive the end of this node."""
        with self._lock:
            # A later answer opens it again. Other calls write meanwhile.
            file, self._file = self._file, None
        try:
            if file is not None:
                with file:
                    os.fsync(file.fileno())
        except OSError as error:
            self._error = self._error or error
        if self._error is not None:
            raise cannot_record(self._path, self._error) from self._error
