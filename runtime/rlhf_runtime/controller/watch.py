"""Detects workers that hang. There is no deadline for a call, but for the time without progress.

The driver polls whenever it has waited for some seconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from rlhf_runtime.errors import NoProgress
from rlhf_runtime.workers.activity import WorkerStatus, request_status

# Frames of each rank's stack in the message; all of them are in the file.
SHOWN_FRAMES = 3


@dataclass
class StallDetector:
    """Finds workers without progress for too long. Pure: the caller has the clock."""

    deadline_seconds: float
    _unreachable_since: dict[str, float] = field(default_factory=dict)

    def observe(self, statuses: Mapping[str, WorkerStatus | None], now: float) -> dict[str, float]:
        """Return the seconds without progress of workers beyond the deadline.

        Workers between calls are not stalled. Workers that do not answer make no progress.
        """
        for name, status in statuses.items():
            if status is not None:
                self._unreachable_since.pop(name, None)
            else:
                self._unreachable_since.setdefault(name, now)
        unreachable = {name: now - since for name, since in self._unreachable_since.items()}
        busy = {name: s.seconds for name, s in statuses.items() if s is not None and s.call}
        # Ranks wait for each other: while one in a call makes progress, none hangs.
        still = busy if min(busy.values(), default=0.0) >= self.deadline_seconds else {}
        return still | {name: s for name, s in unreachable.items() if s >= self.deadline_seconds}


class WorkerWatch:
    """Polls the activity of workers."""

    def __init__(
        self,
        workers: Mapping[str, tuple[str, int]],
        key: str,
        deadline_seconds: float,
        stacks_file: Path,
        job: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """
        Args:
            workers: addresses by name.
            key: the shared secret.
            deadline_seconds: longest time without progress.
            stacks_file: receives the stacks if a worker hangs.
            job: name for the message.
            clock: monotonic seconds.
        """
        self._workers = dict(workers)
        self._key = key
        self._stalls = StallDetector(deadline_seconds)
        self._stacks_file = stacks_file
        self._job = job
        self._clock = clock

    def poll(self) -> None:
        """Request the activity of all workers.

        Raises:
            NoProgress: a worker made no progress for longer than the deadline.
        """
        with ThreadPoolExecutor(len(self._workers)) as threads:
            answers = threads.map(
                lambda address: request_status(address, self._key), self._workers.values()
            )
            statuses = dict(zip(self._workers, answers, strict=True))
        still = self._stalls.observe(statuses, self._clock())
        if still:
            with suppress(OSError):  # a full disk must not hide who hangs
                self._write_stacks(statuses)
            raise NoProgress(self._message(still, statuses))

    def _message(
        self, still: Mapping[str, float], statuses: Mapping[str, WorkerStatus | None]
    ) -> str:
        longest = max(still.values())
        lines = [
            f"no progress for {longest:.0f} s in job {self._job}: got nothing from "
            f"{', '.join(still)}, allowed {self._stalls.deadline_seconds:g} s "
            "(failurePolicy.progressDeadlineSeconds); every stack is in "
            f"{self._stacks_file}; raise the deadline if a call needs longer for one micro-batch"
        ]
        for name, status in statuses.items():
            if status is None:
                lines.append(f"{name} does not answer: it is stopped, or out of reach")
                continue
            doing = f"in {status.call}, step {status.step}" if status.call else "waits for a call"
            lines.append(f"{name} {doing}, nothing done for {status.seconds:.0f} s")
            frames = status.stacks.get(status.thread, "").rstrip().splitlines()
            lines += [f"  {frame}" for frame in frames[-2 * SHOWN_FRAMES :]]
        return "\n".join(lines)

    def _write_stacks(self, statuses: Mapping[str, WorkerStatus | None]) -> None:
        parts = [
            f"== {name}, thread {thread}\n{stack}"
            for name, status in statuses.items()
            if status is not None
            for thread, stack in status.stacks.items()
        ]
        self._stacks_file.write_text("\n".join(parts), encoding="utf-8")
