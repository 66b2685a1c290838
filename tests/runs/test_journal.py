"""A service that would answer otherwise the second time is not asked a second time."""

from __future__ import annotations

import shutil
import signal
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path
from threading import Lock
from typing import Any

import pytest

from rlhf_runtime.journal.entries import read_entries
from rlhf_runtime.journal.folder import pass_folders

from ..scoring_service import scoring_service
from .cli import run
from .manifests import example
from .records import end, records, without_pace

pytestmark = pytest.mark.ray

STEPS = 4
EVALUATED = 16
# The evaluation before the first step, and three steps.
ANSWERS = EVALUATED + 3 * 8 * 4
VICTIMS = ("rank=0,phase=train,step=2", "reward,phase=score,step=3", "driver,phase=train,step=3")


class Moody:
    """Scores responses by their text, and by another rule after so many responses."""

    def __init__(self) -> None:
        self.num_asked = 0
        # Each command asks once before its start.
        self.limit = ANSWERS + 1
        self._lock = Lock()

    def __call__(self, sample: Mapping[str, Any]) -> float | str | None:
        with self._lock:
            self.num_asked += 1
            rule = self.num_asked > self.limit
        text = f"{rule} {sample['prompt']} {sample['response']}"
        number = zlib.crc32(text.encode()) % 1000
        # Some abstentions, and some errors.
        return {0: None, 1: "no number"}.get(number % 20, number / 1000)


@contextmanager
def moody(scratch: Path, name: str) -> Iterator[tuple[Path, Moody]]:
    """The manifest of a job, and its service."""
    service = Moody()
    with scoring_service(service) as url:
        sections = {
            # An evaluation before a step that is killed would be asked for again, in part.
            "schedule": {"steps": STEPS, "evaluateEverySteps": 0},
            "rollout": {"samplesPerPrompt": 4},
            # Only the start and the end: every restart repeats all steps.
            "checkpoint": {"everySteps": 0, "keepLast": 1},
            "data": {"evaluation": {"builtin": "SortDigits", "maxRows": EVALUATED}},
            "failurePolicy": {"backoffSeconds": 0},
            "rewards": [{"name": "moody", "http": {"url": url, "batchSize": 4}}],
        }
        yield example("01", scratch / f"{name}.yaml", sections), service


def numbers(folder: Path) -> dict[tuple[str, int], Mapping[str, float]]:
    return {
        (kind, record["step"]): without_pace(record["metrics"])
        for kind in ("step", "evaluation")
        for record in records(folder, kind)
    }


def test_a_killed_job_has_the_numbers_of_an_undisturbed_one(scratch: Path) -> None:
    with moody(scratch, "undisturbed-journal") as (manifest, service):
        reference = run(manifest, scratch / "undisturbed-journal", "--devices", 1)
        assert reference.code == 0, reference.output
    num_asked = service.num_asked
    assert num_asked == 1 + ANSWERS + 32 + EVALUATED
    with moody(scratch, "journal") as (manifest, service):
        words = [word for victim in VICTIMS for word in ("--inject", f"kill:{victim}")]
        killed = run(manifest, scratch / "journal", "--devices", 1, *words)
        assert killed.code == -signal.SIGKILL, killed.output
        assert killed.output.count(", after WorkerLost: ") == 2
        assert service.num_asked == 1 + ANSWERS
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
        assert service.num_asked == 2 + ANSWERS
        service.limit += 1
        ended = run(manifest, scratch / "journal", "--devices", 1)
        assert ended.code == 0, ended.output
    assert service.num_asked == 2 + num_asked, "nothing was asked twice"
    assert "are read from the journal" in ended.output
    assert numbers(ended.folder) == numbers(reference.folder)
    weights = [
        (finished.folder / "model" / "model.safetensors").read_bytes()
        for finished in (ended, reference)
    ]
    assert weights[0] == weights[1]
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
