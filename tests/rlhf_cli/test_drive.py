"""How `rlhf drive` ends when there is nothing to train: told, and with the right code."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from rlhf_api.exits import ExitCode
from rlhf_api.on_cluster import FINAL_REPORT, LOG_FIELDS_VARIABLE
from rlhf_api.report import StatusReport
from rlhf_api.spec.checkpoint import StartMode
from rlhf_cli import driver
from rlhf_cli.app import app
from rlhf_cli.folder_owner import FolderOwner, claim_folder
from rlhf_cli.packages import installation
from rlhf_cli.packages.lock import PackageLock
from rlhf_cli.train import TrainingTask
from rlhf_runtime.controller.run_lock import lock_folder
from rlhf_runtime.errors import PackageIndexUnreachable
from rlhf_runtime.telemetry.records import EARLY_STOP, EndRecord, Outcome, RunRecord, StepRecord
from rlhf_runtime.telemetry.run_folder import RunFolder
from rlhf_runtime.telemetry.status_board import StatusBoard

from ..rlhf_runtime.controller.jobs import make_job
from ..waiting import wait_until
from .packages.fake_pip import FakePip

POOL = {"name": "cpu", "device": "CPU", "devicesPerNode": 1, "memoryPerDevice": "4Gi"}
SECONDS = 60.0


@pytest.fixture(autouse=True)
def signals() -> Iterator[None]:
    """The command takes signals over; it has its process to itself."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture(autouse=True)
def no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody can acknowledge, so nobody is waited for."""
    monkeypatch.delenv("RAY_AUTH_TOKEN", raising=False)


def manifest(folder: Path, **sections: Any) -> Path:
    job = make_job(
        **{
            "data": {"train": {"builtin": "SortDigits"}},
            "rewards": [{"function": {"entrypoint": "rlhf_runtime.rewards.exact_match:score"}}],
            "resources": {"nodePools": [POOL]},
        }
        | sections
    )
    file = folder / "job.yaml"
    file.write_text(yaml.safe_dump(job.model_dump(mode="json", by_alias=True, exclude_unset=True)))
    return file


def words(file: Path, folder: Path, submission: str = "test-1-0", port: int = 0) -> list[str]:
    options = {"--output": folder / "run", "--submission-id": submission, "--report-port": port}
    return ["drive", str(file), *(str(word) for pair in options.items() for word in pair)]


def run(arguments: list[str]) -> tuple[StatusReport, str]:
    """The final report of a command that failed, and what it wrote before it."""
    done = CliRunner().invoke(app, arguments)
    *before, last = done.output.splitlines()
    assert last.startswith(FINAL_REPORT), done.output
    report = StatusReport.model_validate_json(last.removeprefix(FINAL_REPORT))
    assert report.final and report.exit_code == done.exit_code
    return report, "\n".join(before)


@pytest.mark.parametrize(
    ("sections", "reason"),
    [
        ({"checkpoint": {"storage": {"uri": "s3://bucket/sort"}}}, "NotOffered"),
        ({"code": {"local": "mine"}}, "InvalidManifest"),
        ({"resources": {}}, "PlanUnknown"),
    ],
)
def test_a_job_that_a_cluster_cannot_run_is_refused(
    tmp_path: Path, sections: Mapping[str, Any], reason: str
) -> None:
    report, before = run(words(manifest(tmp_path, **sections), tmp_path))
    assert (report.exit_code, report.reason) == (ExitCode.MANIFEST, reason)
    assert (report.job, report.submission_id, report.phase) == ("test", "test-1-0", "Failed")
    assert f"{reason}: " in before and not (tmp_path / "run").exists()


def test_log_lines_are_json_objects_where_the_operator_says_so_and_the_report_stays_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(LOG_FIELDS_VARIABLE, json.dumps({"job": "team/test", "attempt": 1}))
    report, before = run(words(manifest(tmp_path, resources={}), tmp_path))
    assert report.reason == "PlanUnknown"
    lines = [json.loads(line) for line in before.splitlines()]
    assert any("PlanUnknown: " in line["message"] for line in lines)
    assert {(line["job"], line["attempt"], line["step"]) for line in lines} == {("team/test", 1, 0)}


def test_missing_data_is_the_users_to_mend(tmp_path: Path) -> None:
    data = {"train": {"path": str(tmp_path / "none.jsonl")}}
    report, _ = run(words(manifest(tmp_path, data=data), tmp_path))
    assert (report.exit_code, report.reason) == (ExitCode.USER, "DataNotFound")


def test_a_folder_that_an_earlier_driver_holds_is_waited_for_and_then_the_clusters_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver, "CLEAN_SECONDS", 0.0)
    with lock_folder(tmp_path / "run"):
        report, _ = run(words(manifest(tmp_path), tmp_path))
    assert (report.exit_code, report.reason) == (ExitCode.RETRIABLE, "DirtyCluster")
    assert f"held by process {os.getpid()}" in report.message


def test_another_jobs_folder_is_refused_at_once_and_nothing_is_written(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    claim_folder(folder, FolderOwner(namespace="", name="other"), StartMode.CONTINUE)
    # The other job's driver may run: it is not waited for.
    with lock_folder(folder):
        before = {path.name: path.read_bytes() for path in folder.iterdir()}
        report, log = run(words(manifest(tmp_path), tmp_path))
        assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert (report.exit_code, report.reason) == (ExitCode.MANIFEST, "FolderOfAnotherJob")
    assert "got the job test, allowed the job other" in report.message


@pytest.mark.parametrize("uid", [None, "u-2"])
def test_what_a_driver_cannot_resume_on_a_cluster_is_told_in_its_terms(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uid: str | None
) -> None:
    file = manifest(tmp_path)
    with RunFolder(tmp_path / "run") as folder:
        folder.append(RunRecord("test", "GRPO", "1 CPU rank", "out", 1000, 0.0))
        folder.append(StepRecord(1, {}, {}, 1.0, 1))
    file.rename(folder.manifest)
    file = manifest(tmp_path, rollout={"samplesPerPrompt": 2, "temperature": 0.5})
    if uid is not None:
        monkeypatch.setenv("RLHF_JOB_UID", uid)
    report, log = run(words(file, tmp_path))
    assert (report.exit_code, report.reason) == (ExitCode.MANIFEST, "CannotResume")
    assert "checkpoint.start: Fresh" in report.message and "--fresh" not in report.message
    taken = "the folder had been used by a run without an owner: this job continues that run"
    assert report.takeover == taken
    assert taken in log and taken in (tmp_path / "run" / "logs" / "driver.log").read_text()


def test_a_new_job_starts_over_in_the_folder_if_its_manifest_says_so_and_its_restart_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = RunFolder(tmp_path / "run")
    found: list[bool] = []

    def train(task: TrainingTask) -> str:
        found.append(task.folder.metrics.exists())
        with task.folder as own:
            own.append(StepRecord(1, {}, {}, 1.0, 1))
        return ""

    monkeypatch.setattr(driver, "train", train)
    file = manifest(tmp_path, checkpoint={"start": "Fresh"})
    for uid in ("u-1", "u-1", "u-2", "u-2"):
        monkeypatch.setenv("RLHF_JOB_UID", uid)
        report, _ = run(words(file, tmp_path))
        assert (report.phase, report.exit_code) == ("Succeeded", ExitCode.DONE)
    assert found == [False, True, False, True]
    assert report.takeover is not None and report.takeover.endswith("put aside in earlier/1")
    aside = RunFolder(folder.path / "earlier" / "1")
    assert len(aside.read().steps) == len(folder.read().steps) == 1
    assert (aside.path / "logs" / "driver.log").is_file()


def test_packages_stay_those_of_a_run_and_a_job_that_starts_over_takes_the_newest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pip, taken = FakePip().used_by(monkeypatch), []

    def train(task: TrainingTask) -> str:
        assert task.python_path.packages is not None
        taken.append(task.python_path.packages)
        with task.folder as own:
            own.append(StepRecord(1, {}, {}, 1.0, 1))
        return ""

    monkeypatch.setattr(driver, "train", train)
    folder = tmp_path / "run"
    code = {"requirements": ["tiny-words"]}
    file = manifest(tmp_path, code=code, checkpoint={"start": "Fresh"})
    for uid, newest in (("u-1", "1.0"), ("u-1", "2.0"), ("u-2", "3.0"), ("u-2", "4.0")):
        monkeypatch.setenv("RLHF_JOB_UID", uid)
        pip.newest = newest
        report, log = run(words(file, tmp_path))
        assert report.phase == "Succeeded", log
        assert folder in Path(taken[-1].folder).parents and taken[-1].folder not in sys.path
    versions = [name.removeprefix("tiny-words==") for (name,) in (one.names for one in taken)]
    assert versions == ["1.0", "1.0", "3.0", "3.0"]
    assert (folder / "earlier" / "1" / "requirements.json").is_file()
    assert len([*(folder / "packages").glob("*/tiny_words.py")]) == 2, "they are of no run"


def test_a_driver_whose_index_does_not_answer_is_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def resolve(*arguments: object) -> PackageLock:
        raise PackageIndexUnreachable("the package index does not answer")

    monkeypatch.setattr(installation, "resolve", resolve)
    reward = {"function": {"entrypoint": "needs_a_package:score"}}
    code = {"requirements": ["tiny-words"]}
    report, log = run(words(manifest(tmp_path, code=code, rewards=[reward]), tmp_path))
    assert (report.exit_code, report.reason) == (ExitCode.RETRIABLE, "PackageIndexUnreachable")
    assert "resolving code.requirements: tiny-words" in log


def test_packages_are_not_put_into_the_folder_of_another_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    FakePip().used_by(monkeypatch)
    folder = tmp_path / "run"
    folder.mkdir()
    claim_folder(folder, FolderOwner(namespace="", name="other"), StartMode.CONTINUE)
    file = manifest(tmp_path, code={"requirements": ["tiny-words"]})
    report, _ = run(words(file, tmp_path))
    assert (report.exit_code, report.reason) == (ExitCode.MANIFEST, "FolderOfAnotherJob")
    assert [entry.name for entry in folder.iterdir()] == ["owner.json"]


@pytest.mark.parametrize("takeover", ["", "the folder had been used by an earlier job"])
def test_the_final_report_says_why_training_ended_early(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, takeover: str
) -> None:
    why = "training ended early, after step 6 of 9"
    with RunFolder(tmp_path / "run") as folder:
        folder.append(StepRecord(6, {"reward/mean": 0.5}, {}, 1.0, 1))
        folder.append(EndRecord(Outcome.SUCCEEDED, 1.0, EARLY_STOP, why))

    def drive(start: object, board: StatusBoard, *others: object) -> str:
        return driver._report_earlier_result(folder, board, takeover)

    monkeypatch.setattr(driver, "_drive", drive)
    report, _ = run(words(manifest(tmp_path), tmp_path))
    assert (report.phase, report.exit_code) == ("Succeeded", ExitCode.DONE)
    said = f"{why}; {takeover}" if takeover else why
    assert (report.step, report.message, report.reason) == (6, said, None)


def test_a_name_that_is_no_submission_is_a_wrong_command_line(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, words(manifest(tmp_path), tmp_path, submission="test"))
    assert done.exit_code == 2 and "JOB-ATTEMPT-RESTART" in done.output


def test_sigterm_ends_the_wait_for_an_acknowledgement(tmp_path: Path) -> None:
    log = tmp_path / "log"
    file = manifest(tmp_path, code={"local": "mine"})
    program = "from rlhf_cli.app import main; main()"
    with log.open("w") as stream:
        lingering = subprocess.Popen(
            [sys.executable, "-c", program, *words(file, tmp_path)],
            env=os.environ | {"RAY_AUTH_TOKEN": "secret"},
            stdout=stream,
            stderr=subprocess.STDOUT,
        )
    try:
        wait_until(lambda: FINAL_REPORT in log.read_text(), SECONDS, "the final report")
        assert lingering.poll() is None, "its report has not been read"
        lingering.send_signal(signal.SIGTERM)
        assert lingering.wait(driver.LINGER_SECONDS / 2) == ExitCode.MANIFEST
    finally:
        lingering.kill()
    assert log.read_text().splitlines()[-1].startswith(FINAL_REPORT)
    assert "secret" not in log.read_text()


def test_a_pod_that_is_being_ended_waits_for_no_acknowledgement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    marker = tmp_path / "ending"
    marker.touch()
    monkeypatch.setattr(driver, "POD_ENDING_FILE", str(marker))
    monkeypatch.setenv("RAY_AUTH_TOKEN", "secret")
    begin = time.monotonic()
    report, _ = run(words(manifest(tmp_path, code={"local": "mine"}), tmp_path))
    assert report.final and time.monotonic() - begin < driver.LINGER_SECONDS / 2
