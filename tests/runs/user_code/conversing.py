"""An environment with a state, some of whose calls end processes."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

import psutil

from rlhf_runtime.environments import side_effects


class Adder:
    """Adds, remembers the sum of all calls, and rewards turns."""

    def __init__(self, *, folder: str) -> None:
        self._folder = Path(folder)
        self._total = 0
        own = psutil.Process()
        # Taken here: a process that outlives its server has other parents.
        self._victims = {"process": own, "server": own.parent(), "host": own.parents()[1]}

    def reset(self, prompt: str, **row: object) -> str | None:
        """Add a sign to prompts of even length."""
        return "+0=" if len(prompt) % 2 else None

    def add(self, a: int, b: int) -> str:
        """Add two numbers, and the numbers of all earlier calls.

        Args:
            a: the first one.
            b: the second one.
        """
        self._total += a + b
        self._end_somebody()
        return str(self._total)

    @side_effects
    def log(self, a: int) -> str:
        """Write a number down, once.

        Args:
            a: the number.
        """
        with (self._folder / "log.txt").open("a") as file:
            file.write(f"{a}\n")
        return "done"

    def turn_reward(self) -> float:
        """Reward small sums."""
        return 1.0 / (1.0 + self._total)

    def reward(self) -> float:
        """Reward even sums."""
        return float(self._total % 2 == 0)

    def _end_somebody(self) -> None:
        for name, process in self._victims.items():
            # Whoever removes the file ends the process, while other calls go on.
            with contextlib.suppress(FileNotFoundError):
                os.remove(self._folder / name)
                process.send_signal(signal.SIGKILL)
                signal.pause()
