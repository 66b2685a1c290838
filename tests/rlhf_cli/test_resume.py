"""What `rlhf run` makes of a folder that it is given."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlhf_api.job import RLHFJob
from rlhf_api.manifest import load_file
from rlhf_cli.resume import has_work
from rlhf_runtime.telemetry.records import EndRecord, Outcome, Record, RunRecord, StepRecord
from rlhf_runtime.telemetry.run_folder import RunFolder

EXAMPLE = Path(__file__).parents[2] / "examples" / "01-sort-grpo.yaml"
BEGUN = RunRecord("sort", "grpo", "1 cpu rank", "out", 9, 0.0)
TRAINED = StepRecord(1, {}, {}, 1.0, 1)


def folder_with(place: Path, *records: Record) -> RunFolder:
    with RunFolder(place / "run") as folder:
        for record in records:
            folder.append(record)
    return folder


def job_of(steps: int) -> RLHFJob:
    (job,) = load_file(EXAMPLE, [f"spec.schedule.steps={steps}"])
    return job


def test_a_folder_without_a_run_has_everything_to_do(tmp_path: Path) -> None:
    assert has_work(RunFolder(tmp_path), job_of(9), fresh=False)


def test_a_run_that_did_not_finish_goes_on(tmp_path: Path) -> None:
    failed = EndRecord(Outcome.FAILED, 1.0, "DataNotFound", "no such file")
    assert has_work(folder_with(tmp_path, BEGUN, TRAINED, failed), job_of(9), fresh=False)
    assert (tmp_path / "run" / "metrics.jsonl").is_file()


def test_starting_over_keeps_the_earlier_run(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, BEGUN, TRAINED)
    assert has_work(folder, job_of(9), fresh=True)
    assert (tmp_path / "run.1" / "metrics.jsonl").is_file()
    assert not folder.metrics.exists()


def test_a_finished_run_has_nothing_to_do_but_further_steps(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = folder_with(tmp_path, BEGUN, TRAINED, EndRecord(Outcome.SUCCEEDED, 1.0))
    assert not has_work(folder, job_of(9), fresh=False)
    assert "already finished" in capsys.readouterr().err
    assert has_work(folder, job_of(10), fresh=False)
