"""Memory of every process and of the object store stays where it is, however long a job trains."""

from __future__ import annotations

from pathlib import Path

import pytest

from .cli import run
from .manifests import digit_rows, example, write_rows
from .records import records

MEBIBYTE = 2**20
# Two checkpoints alone have copies of the state of 6 MiB each.
GROWTH_BYTES = 8 * MEBIBYTE
"""Limit of growth over fifty steps and two checkpoints."""
PROCESSES = {"driver", "rank 0", "data", "reward", "object store"}
LONG = {
    "rollout": {"samplesPerPrompt": 8, "maxConcurrentSequences": 64},
    "schedule": {"steps": 150, "promptsPerStep": 8, "warmStart": None},
    "checkpoint": {"everySteps": 25, "keepLast": 2},
}


@pytest.mark.ray
@pytest.mark.nightly  # test_dispatch.py measures the driver's memory, without ranks
def test_a_hundred_and_fifty_steps_need_no_more_memory_than_a_hundred(scratch: Path) -> None:
    notes = {"notes": "x" * 4096}  # verifiers get them: small columns are not in the object store
    rows = write_rows(scratch / "long.jsonl", [row | notes for row in digit_rows(40)])
    data = {"train": {"path": str(rows), "builtin": None}}
    manifest = example("01", scratch / "long.yaml", LONG, {"data": data})
    ended = run(manifest, scratch / "long", "--devices", 1)
    assert ended.code == 0, ended.output
    used = [record["memory"] for record in records(ended.folder, "step")]
    assert len(used) == 150 and used[-1].keys() >= PROCESSES
    for process in used[-1]:
        early = max(memory[process] for memory in used[50:100])
        late = max(memory[process] for memory in used[100:])
        assert late - early < GROWTH_BYTES, (process, early, late)
