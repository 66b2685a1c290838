"""`rlhf report` on a run and on something else."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlhf_api.exits import ExitCode
from rlhf_cli.commands.report import report
from rlhf_runtime.telemetry.errors import NotARun
from rlhf_runtime.telemetry.records import EvaluationRecord, RunRecord
from rlhf_runtime.telemetry.run_folder import RunFolder


def test_an_unfinished_run_is_summed_up_and_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with RunFolder(tmp_path) as folder:
        folder.append(RunRecord("tiny", "GRPO", "1 CPU rank", str(tmp_path), 5, 0.0))
        folder.append(EvaluationRecord(0, {"evaluation/exact_match": 0.25}))
    report(tmp_path)
    shown = capsys.readouterr().out
    assert "unfinished  0 of 5 steps" in shown
    assert str(folder.report) in shown
    assert folder.report.exists()


def test_a_folder_that_holds_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotARun, match="give the folder that `rlhf run` wrote") as caught:
        report(tmp_path)
    assert caught.value.exit_code is ExitCode.MANIFEST
