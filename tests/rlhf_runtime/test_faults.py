"""Faults on purpose: how they are written, who strikes, and that they strike once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rlhf_api.errors import OverrideError
from rlhf_runtime.faults import (
    Fault,
    FaultAction,
    FaultPhase,
    Faults,
    parse_fault,
    pending_faults,
    require_targets,
)

KILL = Fault(FaultAction.KILL, "1", FaultPhase.TRAIN, 3)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("kill:rank=1,phase=train,step=3", KILL),
        ("kill:phase=train,step=3,rank=1", KILL),
        (
            "freeze:driver,phase=score,step=1",
            Fault(FaultAction.FREEZE, "driver", FaultPhase.SCORE, 1),
        ),
        ("raise:rank=0,phase=start-up", Fault(FaultAction.RAISE, "0", FaultPhase.START, 0)),
        ("hang:reward,phase=score,step=2", Fault(FaultAction.HANG, "reward", FaultPhase.SCORE, 2)),
    ],
)
def test_a_fault_is_read(text: str, fault: Fault) -> None:
    assert parse_fault(text) == fault


@pytest.mark.parametrize(
    "text",
    [
        "kill",
        "kill:rank=1",
        "kill:rank=1,phase=train",
        "kill:rank=one,phase=train,step=3",
        "kill:phase=train,step=3",
        "shoot:rank=1,phase=train,step=3",
        "kill:rank=1,phase=lunch,step=3",
        "kill:rank=1,phase=train,step=3,often=yes",
        "hang:driver,phase=train,step=3",
        "raise:rank=1,phase=score,step=3",
        "exhaust:reward,phase=train,step=3",
        "kill:rank=1,phase=train,step=0",
        "kill:rank=1,phase=start-up,step=1",
    ],
)
def test_anything_else_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(OverrideError, match="kill:rank=1,phase=train,step=3"):
        parse_fault(text)


def test_a_rank_that_is_not_there_is_refused() -> None:
    require_targets([KILL], 2)
    with pytest.raises(OverrideError, match="got rank=1, allowed 0 to 0"):
        require_targets([KILL], 1)


def test_a_rank_strikes_itself_once(tmp_path: Path) -> None:
    fault = Fault(FaultAction.RAISE, "1", FaultPhase.TRAIN, 3)
    Faults([fault], tmp_path, "0").enter(FaultPhase.TRAIN, 3)
    rank = Faults([fault], tmp_path, "1")
    rank.enter(FaultPhase.TRAIN, 2)
    rank.enter(FaultPhase.GENERATE, 3)
    with pytest.raises(ZeroDivisionError, match="injected"):
        rank.enter(FaultPhase.TRAIN, 3)
    rank.enter(FaultPhase.TRAIN, 3)
    Faults([fault], tmp_path, "1").enter(FaultPhase.TRAIN, 3)
    assert pending_faults([fault, KILL], tmp_path) == [KILL]


@pytest.mark.parametrize(
    ("target", "phase", "striker"),
    [
        ("driver", FaultPhase.TRAIN, "0"),
        ("driver", FaultPhase.SCORE, "reward"),
        ("1", FaultPhase.SCORE, "reward"),
    ],
)
def test_who_lacks_the_phase_is_killed_by_who_has_it(
    tmp_path: Path, target: str, phase: FaultPhase, striker: str
) -> None:
    fault = Fault(FaultAction.KILL, target, phase, 1)
    victim = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
    try:
        striking = Faults([fault], tmp_path, striker)
        (tmp_path / f"{target}.pid").write_text(str(victim.pid))
        striking.enter(phase, 1)
        assert victim.wait(60) == -signal.SIGKILL
    finally:
        victim.kill()
        victim.wait()


def test_without_faults_nothing_is_written(tmp_path: Path) -> None:
    Faults([], tmp_path / "logs", "0").enter(FaultPhase.TRAIN, 1)
    assert not (tmp_path / "logs").exists()
    Faults([KILL], tmp_path / "logs", "0")
    assert (tmp_path / "logs" / "0.pid").read_text() == str(os.getpid())
