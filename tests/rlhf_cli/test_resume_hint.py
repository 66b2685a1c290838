"""What an interrupted command tells."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlhf_api.exits import ExitCode
from rlhf_cli.command_errors import print_error
from rlhf_cli.local_run import resume_command, with_resume_hint
from rlhf_cli.train import remaining_checkpoints_text
from rlhf_runtime.checkpoint.record import CheckpointRecord
from rlhf_runtime.checkpoint.store import CheckpointStore
from rlhf_runtime.telemetry.run_folder import RunFolder


def store_with(place: Path, *steps: int) -> CheckpointStore:
    store = CheckpointStore(str(place / "saved"))
    for step in steps:
        store.begin(step)
        store.commit(CheckpointRecord(step, 1, {}))
    return store


def interrupted(store: CheckpointStore, folder: RunFolder) -> KeyboardInterrupt:
    command = resume_command(Path("my job.yaml"), folder, 2, ["spec.schedule.steps=9"])
    with (
        pytest.raises(KeyboardInterrupt) as raised,
        with_resume_hint(command, folder, store),
    ):
        raise KeyboardInterrupt
    return raised.value


def test_an_interruption_gives_the_command_that_goes_on_and_the_one_that_exports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    store = store_with(tmp_path, 4, 8)
    store.begin(12)
    assert print_error(interrupted(store, RunFolder(Path("run")))) is ExitCode.INTERRUPTED
    assert capsys.readouterr().err.splitlines() == [
        "interrupted",
        "to resume from the checkpoint of step 8:",
        f"  rlhf run '{tmp_path}/my job.yaml' --output {tmp_path}/run --devices 2 --set "
        "spec.schedule.steps=9",
        "to export its model:",
        f"  rlhf export {tmp_path}/run {tmp_path}/run-step-8",
    ]


def test_without_a_checkpoint_there_is_nothing_to_tell(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    print_error(interrupted(store_with(tmp_path), RunFolder(tmp_path)))
    assert capsys.readouterr().err == "interrupted\n"


def test_what_is_kept_of_a_run_that_is_gone(tmp_path: Path) -> None:
    assert "no checkpoint is in" in remaining_checkpoints_text(store_with(tmp_path))
    kept = remaining_checkpoints_text(store_with(tmp_path, 3, 6))
    assert f"checkpoints up to step 6 are in {tmp_path}/saved" in kept
