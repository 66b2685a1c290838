"""Fault injection: `rlhf run --inject kill:rank=1,phase=train,step=3`.

A fault happens once in the life of a run's folder, when a process enters its phase. All processes
must be on one machine.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from rlhf_api.errors import OverrideError

DRIVER, REWARD = "driver", "reward"


class FaultAction(StrEnum):
    """The effect on the target."""

    KILL = "kill"
    """SIGKILL."""
    FREEZE = "freeze"
    """SIGSTOP: the process lives and does nothing."""
    HANG = "hang"
    """The phase never ends. Only a process with that phase can be the target."""
    RAISE = "raise"
    """An unexpected error. Only a process with that phase can be the target."""
    EXHAUST = "exhaust"
    """Out of memory. Only a process with that phase can be the target."""


# Actions on any process.
BY_SIGNAL = (FaultAction.KILL, FaultAction.FREEZE)


class FaultPhase(StrEnum):
    """A call, or a part of the start or of a call."""

    START = "start-up"
    GENERATE = "generate"
    TRANSITION = "transition"
    SCORE = "score"
    TRAIN = "train"
    SAVE = "save"


@dataclass(frozen=True)
class Fault:
    """One fault."""

    action: FaultAction
    target: str
    """`driver`, `reward` (the first host), or a rank's number."""
    phase: FaultPhase
    step: int
    """The training step; the start-up is step 0."""

    @property
    def is_own_phase(self) -> bool:
        """True if the target itself runs the phase."""
        return self.target != DRIVER and (self.target == REWARD) == (self.phase is FaultPhase.SCORE)

    @property
    def name(self) -> str:
        """A file name of the fault."""
        return f"{self.action.value}-{self.target}-{self.phase.value}-{self.step}"


def parse_fault(text: str) -> Fault:
    """Parse a fault of the command line.

    Raises:
        OverrideError: the text is no fault.
    """
    action, _, rest = text.partition(":")
    options = dict(part.partition("=")[::2] for part in rest.split(",") if part)
    # A rank has a number; `driver` and `reward` are words without a value.
    target = options.pop("rank", None)
    for name in (DRIVER, REWARD):
        if options.get(name) == "":
            target, _ = name, options.pop(name)
    try:
        phase = FaultPhase(options.pop("phase"))
        step = 0 if phase is FaultPhase.START else int(options.pop("step"))
        fault = Fault(FaultAction(action), "" if target is None else target, phase, step)
        is_valid = fault.target in (DRIVER, REWARD) or fault.target.isdigit()
        is_valid = is_valid and (fault.action in BY_SIGNAL or fault.is_own_phase)
        # Only a start-up and a save may happen at step 0.
        is_valid = is_valid and (step > 0 or phase in (FaultPhase.START, FaultPhase.SAVE))
    except (KeyError, ValueError):
        is_valid = False
    if options or not is_valid:
        raise OverrideError(
            f"not a fault: got {text!r}, allowed ACTION:TARGET,phase=PHASE,step=N with ACTION "
            f"{_words(FaultAction)}, TARGET rank=N, reward or driver, PHASE {_words(FaultPhase)}; "
            f"only {' and '.join(BY_SIGNAL)} affect processes without the phase; write for "
            "example kill:rank=1,phase=train,step=3"
        )
    return fault


def require_targets(faults: Sequence[Fault], num_ranks: int) -> None:
    """Check that the ranks of faults exist.

    Raises:
        OverrideError: one does not.
    """
    for fault in faults:
        if fault.target.isdigit() and int(fault.target) >= num_ranks:
            raise OverrideError(
                f"a fault for a rank that the job does not have: got rank={fault.target}, allowed "
                f"0 to {num_ranks - 1}; choose one, or raise --devices"
            )


def require_own_phase(faults: Sequence[Fault]) -> None:
    """Check that every target runs its phase: others may be on another node.

    Raises:
        OverrideError: one does not.
    """
    for fault in faults:
        if not fault.is_own_phase:
            raise OverrideError(
                f"a fault of a process without the phase: got {fault.name}, allowed in "
                "a cluster those whose target has the phase; delete the pod instead"
            )


def pending_faults(faults: Sequence[Fault], folder: Path) -> list[Fault]:
    """The faults that have not happened.

    Args:
        faults: of the run.
        folder: with a file per fault that has happened.
    """
    return [fault for fault in faults if not _mark_path(fault, folder).exists()]


def _mark_path(fault: Fault, folder: Path) -> Path:
    return folder / f"{fault.name}.struck"


def announce(folder: Path, process: str) -> None:
    """Write this process's number to a file, so that others can send it signals."""
    # Signals need process numbers, which other processes can only learn from files.
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{process}.pid").write_text(str(os.getpid()))


class Faults:
    """Injects the faults of a run in one process."""

    def __init__(self, faults: Sequence[Fault], folder: Path, process: str) -> None:
        """
        Args:
            faults: of the run.
            folder: for process numbers and marks of faults.
            process: `reward` or a rank's number.
        """
        self._faults = tuple(faults)
        self._folder = folder
        self._process = process
        if faults:
            announce(folder, process)

    def enter(self, phase: FaultPhase, step: int = 0) -> None:
        """Begin a phase, and inject its faults."""
        for fault in self._faults:
            if (fault.phase, fault.step) == (phase, step) and self._claims(fault):
                self._inject(fault)

    def _claims(self, fault: Fault) -> bool:
        """True if this process has to inject a fault, for the first time."""
        # A target with the phase does it itself. Otherwise rank 0 does, or the reward host in its
        # own phase.
        other = REWARD if fault.phase is FaultPhase.SCORE else "0"
        if self._process != (fault.target if fault.is_own_phase else other):
            return False
        try:
            # Creating the file decides: of several processes and starts only one injects the fault.
            _mark_path(fault, self._folder).touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    def _inject(self, fault: Fault) -> None:
        if fault.action is FaultAction.RAISE:
            # Stands for a bug of this software, so it is no RlhfError.
            raise ZeroDivisionError(f"injected: {fault.name}")
        if fault.action is FaultAction.EXHAUST:
            raise MemoryError(f"injected: {fault.name}")
        while fault.action is FaultAction.HANG:
            time.sleep(3600.0)
        # Every other fault is a signal.
        number = int((self._folder / f"{fault.target}.pid").read_text())
        os.kill(number, signal.SIGKILL if fault.action is FaultAction.KILL else signal.SIGSTOP)


def _words(kind: type[StrEnum]) -> str:
    return ", ".join(kind)
