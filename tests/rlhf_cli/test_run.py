"""`rlhf run` before it starts anything: fields for clusters, contradictions, refusals."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rlhf_api.reading.manifest import load_file
from rlhf_cli import train
from rlhf_cli.app import app
from rlhf_cli.local_run import ignored_sections, start_notices
from rlhf_cli.recorded_run import run_record
from rlhf_cli.train import TrainingTask
from rlhf_runtime.telemetry.records import EndRecord, Outcome

from ..runs.manifests import example
from .packages.fake_pip import FakePip

SMALLEST = Path(__file__).parents[1] / "rlhf_api" / "manifests" / "smallest.yaml"


def test_what_only_pods_have_is_named_and_done_without() -> None:
    secret = "{name: KEY, valueFrom: {secretKeyRef: {name: judge, key: api-key}}}"
    (job,) = load_file(SMALLEST, [f"spec.env=[{secret}]", "spec.hub={}"])
    assert ignored_sections(job) == ["hub", "env"]
    (plain,) = load_file(SMALLEST)
    assert ignored_sections(plain) == []


def test_starting_over_by_the_manifest_is_for_clusters() -> None:
    (fresh,) = load_file(SMALLEST, ["spec.checkpoint.start=Fresh"])
    (notice,) = start_notices(fresh)
    assert "rlhf run ignores it: use --fresh" in notice
    (plain,) = load_file(SMALLEST, ["spec.checkpoint.start=Continue"])
    assert start_notices(plain) == []


@pytest.mark.parametrize(("option", "field"), [("--steps", "steps"), ("--seed", "seed")])
def test_an_option_hides_no_override_of_the_same_field(option: str, field: str) -> None:
    override = f"spec.schedule.{field}=x"
    result = CliRunner().invoke(app, ["run", str(SMALLEST), option, "2", "--set", override])
    assert result.exit_code == 2
    assert f"{option} and --set set the same field: got {option} 2" in result.stderr


def refused(*words: object) -> str:
    """Standard error of `rlhf run`, which exits with 2."""
    result = CliRunner().invoke(app, ["run", *map(str, words)])
    assert result.exit_code == 2, result.output
    return result.stderr


@pytest.mark.parametrize(
    ("key", "value", "allowed"),
    [
        ("kind", "PyTorchJob", "RLHFJob"),
        ("apiVersion", "rlhf-operator.dev/v1", "rlhf-operator.dev/v1alpha1"),
    ],
)
def test_a_manifest_of_another_kind_or_version_is_refused(
    tmp_path: Path, key: str, value: str, allowed: str
) -> None:
    manifest = example("01", tmp_path / "other.yaml")
    text = manifest.read_text()
    (line,) = [line for line in text.splitlines() if line.startswith(f"{key}:")]
    manifest.write_text(text.replace(line, f"{key}: {value}"))
    message = refused(manifest, "--output", tmp_path / "run")
    assert value in message and allowed in message
    assert not (tmp_path / "run").exists()


def test_a_job_that_cannot_fit_is_refused_with_the_sum(tmp_path: Path) -> None:
    huge = {"source": {"builtin": None, "huggingFace": "meta-llama/Llama-3.1-70B"}}
    manifest = example("01", tmp_path / "huge.yaml", {"models": {"actor": huge}})
    message = refused(manifest, "--output", tmp_path / "run", "--devices", 2)
    assert "DoesNotFit" in message and "sum" in message and "GiB" in message
    assert not (tmp_path / "run").exists()


def test_a_folder_that_another_run_holds_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "held"
    folder.mkdir()
    lock = folder / ".lock"
    lock.write_text(str(os.getpid()))
    with lock.open("r+") as holder:
        fcntl.flock(holder, fcntl.LOCK_EX)
        message = refused(example("01", tmp_path / "held.yaml"), "--output", folder)
    assert "FolderInUse" in message and str(os.getpid()) in message
    assert [entry.name for entry in folder.iterdir()] == [".lock"]


def test_packages_stay_those_of_a_run_until_it_starts_over_or_needs_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    pip = FakePip().used_by(monkeypatch)
    seen: list[tuple[str, list[str]]] = []

    def keep(task: TrainingTask) -> str:
        assert task.python_path.packages is not None
        (name,) = task.python_path.packages.names
        seen.append((name, [text for text in task.notices if "other code than" in text]))
        record = run_record(task.job, task.plan, task.folder, task.python_path)
        with task.folder as folder:
            folder.append(record)
            folder.append(EndRecord(Outcome.INTERRUPTED, 0.0))
        return ""

    monkeypatch.setattr(train, "train", keep)
    code = {"requirements": ["tiny-words>=1"]}
    manifest = example("01", tmp_path / "words.yaml", {"code": code})
    words = ["run", str(manifest), "--output", str(tmp_path / "run")]
    others = ["--set", "spec.code.requirements=[tiny-words>=2]"]
    for newest, further in (("1.0", []), ("2.0", []), ("2.0", others), ("3.0", ["--fresh"])):
        pip.newest = newest
        done = CliRunner().invoke(app, [*words, *further])
        assert done.exit_code == 0, done.output
    versions = [name for name, _ in seen]
    assert versions == [f"tiny-words=={version}" for version in ("1.0", "1.0", "2.0", "3.0")]
    assert [len(notices) for _, notices in seen] == [0, 0, 1, 0]
