"""Faults on purpose: `rlhf run --inject kill:rank=1,phase=train,step=3`.

Whoever enters the phase strikes, once in the life of a run's folder. Workers find each other by the
files in which each leaves its process number, so all of it works on one machine only.
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
    """What happens to the target."""

    KILL = "kill"
    """It gets SIGKILL."""
    FREEZE = "freeze"
    """It gets SIGSTOP: it lives and does nothing."""
    HANG = "hang"
    """It enters the phase and never comes back. Only who has the phase can hang in it."""
    RAISE = "raise"
    """It raises an error that nobody expects. As hang, only in a phase of its own."""
    EXHAUST = "exhaust"
    """It runs out of memory. As hang, only in a phase of its own."""


BY_SIGNAL = (FaultAction.KILL, FaultAction.FREEZE)
"""Actions that any process can be the target of."""


class Phase(StrEnum):
    """Where a fault strikes: a call, or a part of the start or of a call."""

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
    """`driver`, `reward` (of several hosts the first), or a rank's number."""
    phase: Phase
    step: int
    """The training step; the start-up is step 0."""

    @property
    def is_at_home(self) -> bool:
        """Whether the target has the phase."""
        return self.target != DRIVER and (self.target == REWARD) == (self.phase is Phase.SCORE)

    @property
    def name(self) -> str:
        """As on the command line, fit for a file's name."""
        return f"{self.action.value}-{self.target}-{self.phase.value}-{self.step}"


def parse_fault(text: str) -> Fault:
    """A fault from the command line.

    Raises:
        OverrideError: the text is none.
    """
    action, _, rest = text.partition(":")
    given = dict(part.partition("=")[::2] for part in rest.split(",") if part)
    target = given.pop("rank", None)
    for name in (DRIVER, REWARD):
        if given.get(name) == "":
            target, _ = name, given.pop(name)
    try:
        phase = Phase(given.pop("phase"))
        step = 0 if phase is Phase.START else int(given.pop("step"))
        fault = Fault(FaultAction(action), "" if target is None else target, phase, step)
        is_known = fault.target in (DRIVER, REWARD) or fault.target.isdigit()
        is_known = is_known and (fault.action in BY_SIGNAL or fault.is_at_home)
        is_known = is_known and (step > 0 or phase in (Phase.START, Phase.SAVE))
    except (KeyError, ValueError):
        is_known = False
    if given or not is_known:
        raise OverrideError(
            f"not a fault: got {text!r}, allowed ACTION:TARGET,phase=PHASE,step=N with ACTION "
            f"{_words(FaultAction)}, TARGET rank=N, reward or driver, PHASE {_words(Phase)}; only "
            f"{' and '.join(BY_SIGNAL)} strike who does not have the phase; write for "
            "example kill:rank=1,phase=train,step=3"
        )
    return fault


def require_targets(faults: Sequence[Fault], num_ranks: int) -> None:
    """Check that ranks that faults are for exist.

    Raises:
        OverrideError: one does not.
    """
    for fault in faults:
        if fault.target.isdigit() and int(fault.target) >= num_ranks:
            raise OverrideError(
                f"a fault for a rank that the job does not have: got rank={fault.target}, allowed "
                f"0 to {num_ranks - 1}; choose one, or raise --devices"
            )


def require_at_home(faults: Sequence[Fault]) -> None:
    """Check that faults strike only who has their phase: others may be on another node.

    Raises:
        OverrideError: one does not.
    """
    for fault in faults:
        if not fault.is_at_home:
            raise OverrideError(
                f"a fault that another process would have to strike: got {fault.name}, allowed in "
                "a cluster those whose target has the phase; delete the pod instead"
            )


def never_struck(faults: Sequence[Fault], folder: Path) -> list[Fault]:
    """Those that have not struck so far.

    Args:
        faults: all of them.
        folder: where those that have struck are noted.
    """
    return [fault for fault in faults if not _note_of(fault, folder).exists()]


def _note_of(fault: Fault, folder: Path) -> Path:
    return folder / f"{fault.name}.struck"


def announce(folder: Path, process: str) -> None:
    """Leave this process's number where those who strike look for it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{process}.pid").write_text(str(os.getpid()))


class Faults:
    """The faults of a run, as one process sees them."""

    def __init__(self, faults: Sequence[Fault], folder: Path, process: str) -> None:
        """
        Args:
            faults: all of them.
            folder: where processes leave their numbers, and faults that they have struck.
            process: this one: `reward` or a rank's number.
        """
        self._faults = tuple(faults)
        self._folder = folder
        self._process = process
        if faults:
            announce(folder, process)

    def enter(self, phase: Phase, step: int = 0) -> None:
        """Say that this process begins a phase; what is to strike there strikes."""
        for fault in self._faults:
            if (fault.phase, fault.step) == (phase, step) and self._strikes(fault):
                self._strike(fault)

    def _strikes(self, fault: Fault) -> bool:
        """Whether this process is the one that does it, for the first time.

        Who has the phase strikes itself; others are struck by rank 0, or by the host of rewards
        where the phase is that one's.
        """
        other = REWARD if fault.phase is Phase.SCORE else "0"
        if self._process != (fault.target if fault.is_at_home else other):
            return False
        try:
            _note_of(fault, self._folder).touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    def _strike(self, fault: Fault) -> None:
        if fault.action is FaultAction.RAISE:
            raise ZeroDivisionError(f"injected: {fault.name}")
        if fault.action is FaultAction.EXHAUST:
            raise MemoryError(f"injected: {fault.name}")
        while fault.action is FaultAction.HANG:
            time.sleep(3600.0)
        number = int((self._folder / f"{fault.target}.pid").read_text())
        os.kill(number, signal.SIGKILL if fault.action is FaultAction.KILL else signal.SIGSTOP)


def _words(kind: type[StrEnum]) -> str:
    return ", ".join(kind)
