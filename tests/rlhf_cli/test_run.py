"""What `rlhf run` makes of a folder that it is given."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlhf_cli.run import is_new
from rlhf_runtime.errors import UnfinishedRun
from rlhf_runtime.telemetry.records import EndRecord, Outcome, Record, RunRecord, StepRecord
from rlhf_runtime.telemetry.run_folder import RunFolder

BEGUN = RunRecord("sort", "grpo", "1 cpu rank", "out", 9, 0.0)
TRAINED = StepRecord(1, {}, {}, 1.0, 1)


def folder_with(place: Path, *records: Record) -> RunFolder:
    with RunFolder(place / "run") as folder:
        for record in records:
            folder.append(record)
    return folder


def test_a_folder_without_a_run_is_new(tmp_path: Path) -> None:
    assert is_new(RunFolder(tmp_path), fresh=False)


def test_a_run_that_failed_before_it_trained_is_begun_again(tmp_path: Path) -> None:
    failed = EndRecord(Outcome.FAILED, 1.0, "DataNotFound", "no such file")
    assert is_new(folder_with(tmp_path, BEGUN, failed), fresh=False)


def test_a_run_that_trained_is_not_thrown_away(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, BEGUN, TRAINED)
    with pytest.raises(UnfinishedRun, match="--fresh"):
        is_new(folder, fresh=False)
    assert is_new(folder, fresh=True)
    assert (tmp_path / "run.1" / "metrics.jsonl").is_file()
    assert not folder.metrics.exists()


def test_a_finished_run_has_nothing_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ended = EndRecord(Outcome.SUCCEEDED, 1.0)
    assert not is_new(folder_with(tmp_path, BEGUN, TRAINED, ended), fresh=False)
    assert "already finished" in capsys.readouterr().err
