"""A service that would answer otherwise the second time is not asked a second time, also where it
was asked while other responses were generated."""

from __future__ import annotations

import os
import shutil
import signal
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from threading import Lock
from typing import Any

import psutil
import pytest

from rlhf_runtime.journal.entries import read_entries
from rlhf_runtime.journal.folder import pass_folders

from ..scoring_service import scoring_service
from ..timelines import overlapping_steps
from ..waiting import wait_until
from .cli import run
from .manifests import example
from .records import end, records, without_pace

pytestmark = pytest.mark.ray

STEPS = 4
EVALUATED = 16
# The evaluation before the first step, and three steps.
ANSWERS = EVALUATED + 3 * 8 * 4
VICTIMS = ("rank=0,phase=train,step=2", "reward,phase=score,step=3", "driver,phase=train,step=3")
BATCH = 2
ERROR = "no number"
# A request that is interrupted is not sent again before its sender is gone.
ONE_BATCH_AT_A_TIME = {"batchSize": BATCH, "maxConcurrency": 1, "timeoutSeconds": 100}


class Moody:
    """Scores responses by their text, and by another rule after so many responses."""

    def __init__(self) -> None:
        self.answers: list[float | str | None] = []
        # Each command asks once before its start.
        self.limit = ANSWERS + 1
        # Called instead of the answer to this response.
        self.interruptions: dict[int, Callable[[], None]] = {}
        self._lock = Lock()

    def __call__(self, sample: Mapping[str, Any]) -> float | str | None:
        with self._lock:
            if interrupt := self.interruptions.pop(self.num_asked + 1, None):
                interrupt()
                raise ConnectionAbortedError("nobody hears the answer")
            self.answers.append(self._answer(sample, self.num_asked >= self.limit))
            return self.answers[-1]

    @property
    def num_asked(self) -> int:
        return len(self.answers)

    def _answer(self, sample: Mapping[str, Any], rule: bool) -> float | str | None:
        text = f"{rule} {sample['prompt']} {sample['response']}"
        number = zlib.crc32(text.encode()) % 1000
        # Some abstentions, and some errors.
        return {0: None, 1: ERROR}.get(number % 20, number / 1000)


@contextmanager
def moody(scratch: Path, name: str) -> Iterator[tuple[Path, Moody]]:
    """The manifest of a job, and its service."""
    service = Moody()
    with scoring_service(service) as url:
        sections = {
            # An evaluation before a step that is killed would be asked for again, in part.
            "schedule": {"steps": STEPS, "evaluateEverySteps": 0},
            # One response after the other: the first ones end long before the last.
            "rollout": {
                "samplesPerPrompt": 4,
                "maxConcurrentSequences": 1,
                "maxResponseTokens": 24,
            },
            # Only the start and the end: every restart repeats all steps.
            "checkpoint": {"everySteps": 0, "keepLast": 1},
            "data": {"evaluation": {"builtin": "SortDigits", "maxRows": EVALUATED}},
            "failurePolicy": {"backoffSeconds": 0},
            "rewards": [{"name": "moody", "http": {"url": url, **ONE_BATCH_AT_A_TIME}}],
        }
        yield example("01", scratch / f"{name}.yaml", sections), service


def numbers(folder: Path) -> dict[tuple[str, int], Mapping[str, float]]:
    return {
        (kind, record["step"]): without_pace(record["metrics"])
        for kind in ("step", "evaluation")
        for record in records(folder, kind)
    }


def kill_while_it_generates(service: Moody, logs: Path) -> None:
    """Kill the rank before its responses are complete, and wait for the end of the reward host."""
    # No step has used the errors of the batch before: these responses are asked about again.
    service.limit += service.answers[-BATCH:].count(ERROR)
    # Both have written their numbers, as faults are injected.
    rank, host = (int((logs / f"{name}.pid").read_text()) for name in ("0", "reward"))
    assert not (logs / "kill-reward-score-3.struck").exists(), "the call has begun"
    os.kill(rank, signal.SIGKILL)
    wait_until(lambda: not psutil.pid_exists(host), 60, "the end of the reward host")


def test_a_killed_job_has_the_numbers_of_an_undisturbed_one(scratch: Path) -> None:
    with moody(scratch, "undisturbed-journal") as (manifest, service):
        reference = run(manifest, scratch / "undisturbed-journal", "--devices", 1)
        assert reference.code == 0, reference.output
    num_asked = service.num_asked
    assert num_asked == 1 + ANSWERS + 32 + EVALUATED
    with moody(scratch, "journal") as (manifest, service):
        words = [word for victim in VICTIMS for word in ("--inject", f"kill:{victim}")]
        # The second batch of the third step.
        second = 1 + EVALUATED + 2 * 32 + BATCH + 1
        service.interruptions[second] = partial(
            kill_while_it_generates, service, scratch / "journal" / "logs"
        )
        killed = run(manifest, scratch / "journal", "--devices", 1, *words)
        assert killed.code == -signal.SIGKILL, killed.output
        assert killed.output.count(", after WorkerLost: ") == 3
        assert not service.interruptions
        num_again = service.limit - (1 + ANSWERS)
        assert service.num_asked == 1 + ANSWERS + num_again
        changed = scratch / "changed-journal"
        shutil.copytree(killed.folder, changed)
        for file in changed.glob("journal/step-000002/*.jsonl"):
            entries = list(read_entries(file.read_bytes()))
            lines = [replace(entry, question="other").to_line() for entry in entries if entry]
            file.write_bytes(b"".join(lines))
        service.limit += 1
        refused = run(manifest, changed, "--devices", 1)
        assert refused.code == 3, refused.output
        assert end(refused.folder)["reason"] == "JournalMismatch"
        assert "step 2 runs again, and asks moody another question" in refused.output
        assert " restart " not in refused.output, "the same would happen again"
        assert service.num_asked == 2 + ANSWERS + num_again
        service.limit += 1
        ended = run(manifest, scratch / "journal", "--devices", 1)
        assert ended.code == 0, ended.output
    assert service.num_asked == 2 + num_asked + num_again, "nothing else was asked twice"
    assert "are read from the journal" in ended.output
    assert numbers(ended.folder) == numbers(reference.folder)
    weights = [
        (finished.folder / "model" / "model.safetensors").read_bytes()
        for finished in (ended, reference)
    ]
    assert weights[0] == weights[1]
    assert overlapping_steps(reference.folder, "actor.generate", "reward.score_early")
    assert {one.step for one in pass_folders(ended.folder / "journal")} == {STEPS}, "others are old"


def test_a_service_that_was_down_is_asked_again(scratch: Path) -> None:
    numbers = count()

    def score(sample: Mapping[str, Any]) -> float | str:
        # It is up again after the evaluation before the first step, which it ends.
        return "no number" if next(numbers) <= EVALUATED else float(sample["finished"])

    with scoring_service(score) as url:
        sections = {
            "schedule": {"warmStart": None, "steps": 1},
            "data": {"evaluation": {"builtin": "SortDigits", "maxRows": EVALUATED}},
            "failurePolicy": {
                "backoffSeconds": 0,
                "rules": [{"onReason": "NothingScored", "action": "Restart"}],
            },
            "rewards": [{"http": {"url": url}}],
        }
        manifest = example("01", scratch / "down.yaml", sections)
        ended = run(manifest, scratch / "down", "--devices", 1)
    assert ended.code == 0, ended.output
    assert ended.output.count(", after NothingScored: ") == 1
    assert "read from the journal" not in ended.output
    assert "gives no score now (notANumber)" in ended.output, "it was asked before the start"
