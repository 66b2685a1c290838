"""A full disk: checkpoints remain, and the job waits for space and continues."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from ..small_disk import small_disk
from ..waiting import wait_until
from .cli import run, start
from .manifests import example
from .records import records

pytestmark = pytest.mark.ray

WAITING = "waiting up to 86400 s for space"
OFTEN = {"schedule": {"steps": 3, "warmStart": None}, "checkpoint": {"everySteps": 1}}


@pytest.mark.nightly  # test_saves_on_a_full_disk.py goes on after a full disk, without a run
def test_training_continues_without_space_for_checkpoints_and_resumes_from_the_last_one(
    scratch: Path,
) -> None:
    folder = scratch / "full-storage"
    with small_disk(scratch / "small-storage", mebibytes=10) as disk:
        storage = {"checkpoint": {"storage": {"uri": f"file://{disk.folder}/job"}}}
        manifest = example("01", scratch / "full-storage.yaml", OFTEN, storage)
        ended = run(manifest, folder, "--devices", 1, inside=disk.inside)
        assert ended.code == 0, ended.output
        for step in (2, 3):
            assert f"the checkpoint of step {step} could not be written" in ended.output
        assert "No space left on device" in ended.output and "training goes on" in ended.output
        assert [path.name for path in (disk.seen / "job").glob("*step-*")] == ["step-00000001"]

        disk.resize(64)
        further = run(manifest, folder, "--devices", 1, "--steps", 4, inside=disk.inside)
        assert further.code == 0, further.output
        assert "going on from the checkpoint of step 1" in further.output
        assert (disk.seen / "job" / "step-00000004" / "checkpoint.json").is_file()


def test_a_run_on_a_full_disk_waits_and_goes_on_by_itself_or_stops_when_asked(
    scratch: Path,
) -> None:
    """Checkpoints, records and logs are on one disk, which is full twice, and at the next start."""
    with small_disk(scratch / "small-folder", mebibytes=64) as disk:
        folder, seen = disk.folder / "run", disk.seen / "run"
        manifest = example("01", scratch / "full-folder.yaml", OFTEN)
        words = ["run", manifest, "--output", folder, "--devices", 1]
        command = start([*words, "--steps", 2000], scratch / "full-folder.log", disk.inside)
        try:
            command.wait_for_text("checkpoint step=1")
            wait_until(lambda: disk.fill() and WAITING in command.output, 300, "its wait")
            waited_after = max(record["step"] for record in records(seen, "step"))
            disk.empty()
            command.wait_for_text("the disk has space again")
            command.wait_for_text(f"checkpoint step={waited_after + 2}")
            steps = [record["step"] for record in records(seen, "step")]
            assert steps == sorted(set(steps)), "nothing is trained again"
            wait_until(
                lambda: disk.fill() and command.output.count(WAITING) == 2, 300, "its second wait"
            )
            command.process.send_signal(signal.SIGTERM)
            assert command.process.wait(60) == 130, command.output
            command.assert_no_leftovers()
        finally:
            command.end()
        assert "CannotRecord: the run's folder cannot be written" in command.output
        assert "No space left on device" in command.output
        assert "Traceback" not in command.output, command.output

        reached = max(record["step"] for record in records(seen, "step"))
        further = [*words, "--steps", reached + 2]
        again = start(further, scratch / "full-again.log", disk.inside)
        try:
            again.wait_for_text(WAITING)
            disk.empty()
            assert again.process.wait(300) == 0, again.output
        finally:
            again.end()
        assert "going on from the checkpoint of step" in again.output
        steps = {record["step"] for record in records(seen, "step")}
        assert steps == set(range(1, reached + 3))
        assert records(seen, "end")[-1]["outcome"] == "succeeded"
