"""The folder of the journal, as the driver uses it: attempts, and which answers are kept."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import NamedTuple

from pydantic import TypeAdapter

from rlhf_api.spec.checkpoint import JournalMode
from rlhf_runtime.durable_files import write_durably
from rlhf_runtime.journal.disk import recording

# Limit of all answers; the oldest steps are dropped first.
MAX_BYTES = 1 << 30
VERSION = 1
STATE_FILE = "state.json"
_FOLDER_NAME = re.compile(r"(step|evaluation)-([0-9]+)")


class Position(NamedTuple):
    """A pass in the order of training: an evaluation follows the training of its step."""

    step: int
    is_evaluation: bool = False


@dataclass(frozen=True)
class PassSettings:
    """Digests of all that the numbers of a job depend on."""

    job: str
    """Digest of the manifest, the plan, the user's code, and versions."""
    code: str
    """Digest of the user's code."""


@dataclass(frozen=True)
class Attempt:
    """One incarnation of workers. It reads answers of earlier ones, and adds its own."""

    folder: Path
    number: int
    """Attempts count from 1."""
    comparable_since: int
    """The first of the latest attempts with equal settings, devices and versions. Their questions
    must be the same."""
    mode: JournalMode
    code: str
    """Digest of the user's code."""


@dataclass(frozen=True)
class _State:
    """Facts about the attempts so far."""

    attempt: int
    settings: str
    """Digest of all settings of the last attempt."""
    comparable_since: int
    kept_from: int
    """Answers of earlier steps are dropped."""
    version: int = VERSION


_NO_ATTEMPT = _State(attempt=0, settings="", comparable_since=1, kept_from=0)


class JournalFolder:
    """The journal of a run.

    Every method raises CannotRecord if the folder cannot be read or written.
    """

    def __init__(
        self,
        path: Path,
        settings: PassSettings,
        mode: JournalMode,
        notify: Callable[[str], None],
        max_bytes: int = MAX_BYTES,
    ) -> None:
        """
        Args:
            path: of the folder; created when an attempt begins.
            settings: digests of all that numbers depend on.
            mode: use of the answers.
            notify: shows a text to users.
            max_bytes: limit of all answers.
        """
        self._path = path
        self._settings = settings
        self._mode = mode
        self._notify = notify
        self._max_bytes = max_bytes
        self._state = _NO_ATTEMPT
        # Bytes of each pass.
        self._sizes: dict[Position, int] = {}

    def begin(self, step: int) -> Attempt | None:
        """Begin an attempt.

        Args:
            step: of the checkpoint that it resumes from; 0: from the beginning.

        Returns:
            None: no answers are kept.
        """
        with recording(self._path):
            if self._mode is JournalMode.OFF:
                # Answers of later steps could not be compared with those that are not kept.
                self._clear()
                return None
            previous = self._read_state()
            number = previous.attempt + 1
            is_same = previous.settings == self._settings.job
            since = previous.comparable_since if is_same else number
            state = _State(number, self._settings.job, since, previous.kept_from)
            if step + 1 < previous.kept_from:
                # The steps between ask again, and later ones then have other questions.
                self._clear()
                state = replace(state, comparable_since=number, kept_from=0)
                self._notify(
                    "the journal has no answers to the next steps any more: services are asked "
                    "again, and the numbers may not be those of the earlier attempt"
                )
            # Not its parents: a run's folder that was deleted is not made again.
            self._path.mkdir(exist_ok=True)
            self._write_state(state)
            folders = pass_folders(self._path)
            self._sizes = {position: _size(folder) for position, folder in folders.items()}
        return Attempt(self._path, number, state.comparable_since, self._mode, self._settings.code)

    def end_pass(self, position: Position) -> None:
        """Keep to the limit of bytes after a step or an evaluation."""
        if self._mode is JournalMode.OFF:
            return
        with recording(self._path):
            self._sizes[position] = _size(pass_folder(self._path, position))
        kept = sorted(self._sizes)
        first = kept[0].step
        while sum(self._sizes[one] for one in kept) > self._max_bytes and first < position.step:
            first += 1
            kept = [one for one in kept if one.step >= first]
        if first > min(self._sizes).step:
            self.drop_before(first)
            self._notify(
                f"the journal has reached its limit of {self._max_bytes} bytes: the oldest answers "
                "are dropped; a job that resumes from a checkpoint before them asks services "
                "again. Smaller checkpoint.everySteps or checkpoint.keepLast need less"
            )

    def drop_before(self, step: int) -> None:
        """Drop the answers of earlier steps.

        Args:
            step: of the oldest checkpoint that the job may resume from.
        """
        if self._mode is JournalMode.OFF or step <= self._state.kept_from:
            return
        # The state first: folders that stay because the process ends are never read.
        with recording(self._path):
            self._write_state(replace(self._state, kept_from=step))
        for position, folder in pass_folders(self._path).items():
            if position.step < step:
                shutil.rmtree(folder, ignore_errors=True)
        self._sizes = {at: size for at, size in self._sizes.items() if at.step >= step}

    def forget_from(self, first: Position) -> None:
        """Forget the answers to a pass that ended the job, and to later ones: the next attempt asks
        again."""
        if self._mode is JournalMode.OFF:
            return
        with recording(self._path):
            for position, folder in sorted(pass_folders(self._path).items(), reverse=True):
                if position >= first:
                    shutil.rmtree(folder)
            # Workers of this attempt that have not ended yet may still write other answers.
            since = self._state.attempt + 1
            self._write_state(replace(self._state, comparable_since=since))

    def _clear(self) -> None:
        for folder in pass_folders(self._path).values():
            shutil.rmtree(folder)

    def _read_state(self) -> _State:
        """Return the state of earlier attempts; without a usable one, begin anew."""
        path = self._path / STATE_FILE
        try:
            state = _STATE.validate_json(path.read_bytes(), strict=True)
            if state.version == VERSION:
                return state
            problem = f"version {state.version}, allowed {VERSION}"
        except FileNotFoundError:
            problem = ""
        except ValueError as error:
            problem = str(error)
        if problem:
            self._notify(f"{path} cannot be used: got {problem}; services are asked again")
        self._clear()
        return _NO_ATTEMPT

    def _write_state(self, state: _State) -> None:
        write_durably(self._path / STATE_FILE, json.dumps(asdict(state)))
        self._state = state


_STATE = TypeAdapter(_State)


def pass_folder(journal: Path, position: Position) -> Path:
    """Return the folder of the answers to a pass."""
    kind = "evaluation" if position.is_evaluation else "step"
    return journal / f"{kind}-{position.step:06d}"


def pass_folders(journal: Path) -> dict[Position, Path]:
    """Return all folders of answers."""
    matches = ((_FOLDER_NAME.fullmatch(folder.name), folder) for folder in journal.glob("*-*"))
    return {
        Position(int(match[2]), match[1] == "evaluation"): folder
        for match, folder in matches
        if match is not None
    }


def _size(folder: Path) -> int:
    """Return the bytes of the answers to a pass."""
    return sum(file.stat().st_size for file in folder.glob("*.jsonl"))
