"""A run whose folder is deleted: it stops, and resumes from checkpoints in other storage."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from .cli import run, start
from .manifests import example
from .records import end, records

pytestmark = pytest.mark.ray

STOPPED_SECONDS = 60.0


def test_a_run_whose_folder_is_deleted_stops_and_resumes_from_other_storage(
    scratch: Path,
) -> None:
    folder, kept = scratch / "deleted", scratch / "kept"
    changes = {
        "schedule": {"warmStart": None},
        "checkpoint": {"everySteps": 1, "storage": {"uri": f"file://{kept}"}},
    }
    manifest = example("01", scratch / "deleted.yaml", changes)
    words = ["run", manifest, "--output", folder, "--devices", 1, "--steps", 5000]
    command = start(words, folder.with_suffix(".log"))
    try:
        command.wait_for_text("checkpoint step=1")
        # Renamed first, so that all files vanish at once: the run would notice a single one
        # earlier.
        shutil.rmtree(folder.rename(scratch / "thrown-away"))
        assert command.wait(STOPPED_SECONDS) == 4, command.output
        command.assert_no_leftovers()
    finally:
        command.end()
    last = command.output.splitlines()[-1]
    assert last.startswith("RunFolderGone: ") and f"got no {folder} any more" in last, last
    assert f"are in file://{kept}: the same command resumes there" in last, last
    assert "outcome=succeeded" not in command.output and not folder.exists()
    steps = sorted(int(entry.name.removeprefix("step-")) for entry in kept.glob("step-*"))

    again = run(manifest, folder, "--devices", 1, "--steps", steps[-1])
    assert again.code == 0, again.output
    assert f"{steps[-1]} of {steps[-1]} steps behind it: nothing is left to train" in again.output
    assert f"outcome=succeeded steps={steps[-1]}/{steps[-1]}" in again.output
    assert not records(folder, "step") and end(folder)["outcome"] == "succeeded"
    assert (folder / "model" / "model.safetensors").is_file()
