"""What is relative in a manifest means its folder, from wherever the command is given."""

from __future__ import annotations

import glob
import io
import sys
from pathlib import Path

import pytest
import yaml

from rlhf_api.changes import differences, spec_document
from rlhf_api.reading.fields import all_fields, contract
from rlhf_api.spec.job import RLHFJob
from rlhf_cli.local_jobs import PATHS, absolute, local_jobs, with_resolved_paths
from rlhf_cli.manifests import read_jobs
from rlhf_cli.recorded_run import manifest_text

EXAMPLES = Path(__file__).parents[2] / "examples"
MANIFEST = """\
apiVersion: rlhf-operator.dev/v1alpha1
kind: RLHFJob
metadata: {name: sort}
spec:
  algorithm: {type: Custom, custom: {entrypoint: "mine:Mine"}}
  code: {local: .}
  models:
    actor: {source: {path: ../models/actor}}
    judge: {source: {huggingFace: Qwen/Qwen2.5-0.5B}}
  data:
    train: {path: rows.jsonl, answerField: answer}
    pretraining: {path: /there/texts.jsonl}
    evaluation: {path: ~/held-out.jsonl}
  rewards:
    - name: first
      function: {entrypoint: "mine:score"}
    - name: second
      model: {path: ./judge}
  telemetry: {mlflow: {trackingUri: runs, experiment: mine}}
  schedule: {steps: 1, promptsPerStep: 8}
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "project" / "jobs").mkdir(parents=True)
    (tmp_path / "project" / "jobs" / "job.yaml").write_text(MANIFEST)
    return tmp_path


def paths_of(job: RLHFJob) -> list[str | None]:
    spec = job.spec
    assert spec.code and spec.data.pretraining and spec.data.evaluation and spec.telemetry.mlflow
    assert spec.rewards[1].model is not None
    return [
        spec.code.local,
        spec.models["actor"].source.path,
        spec.data.train.path,
        spec.data.pretraining.path,
        spec.data.evaluation.path,
        spec.rewards[1].model.path,
        spec.telemetry.mlflow.tracking_uri,
    ]


def expected(home: Path, folder: Path) -> list[str]:
    return [
        str(folder),
        str(folder.parent / "models" / "actor"),
        str(folder / "rows.jsonl"),
        "/there/texts.jsonl",
        str(home / "home" / "held-out.jsonl"),
        str(folder / "judge"),
        str(folder / "runs"),
    ]


def test_no_path_of_the_manifest_is_forgotten() -> None:
    # Paths in pods mean no file of this machine.
    named = {
        each.path
        for each in all_fields(contract())
        if each.name in ("path", "paths", "local") and not each.path.startswith("spec.resources.")
    }
    splits, fields = ("train", "pretraining", "evaluation"), ("path", "paths")
    of_data = {f"spec.data.{name}.{field}" for name in splits for field in fields}
    of_data |= {
        f"spec.data.{name}.sources[].{field}"
        for name in ("train", "evaluation")
        for field in fields
    }
    others = {"spec.code.local", "spec.models.<name>.source.path", "spec.rewards[].model.path"}
    assert named == of_data | others
    known = {".".join(("spec", *(part for part in each if part != "*"))) for each in PATHS}
    plain = {each.replace(".<name>", "").replace("[]", "") for each in others}
    assert known == plain | {
        *("spec.data.path", "spec.data.paths"),
        *("spec.data.sources.path", "spec.data.sources.paths"),
    }


def test_paths_of_sources_mean_the_manifests_folder(home: Path) -> None:
    sources = (
        "{sources: [{path: a.jsonl}, {path: 'b-*.jsonl'}, {builtin: SortDigits}, "
        "{paths: [c.jsonl, /d.jsonl, ../*]}]}"
    )
    file = home / "project" / "jobs" / "job.yaml"
    file.write_text(MANIFEST.replace("{path: rows.jsonl, answerField: answer}", sources))
    (job,) = local_jobs(file)
    paths = [source.path for source in job.spec.data.train.sources or ()]
    assert paths == [f"{file.parent}/a.jsonl", f"{file.parent}/b-*.jsonl", None, None]
    (*_, several) = job.spec.data.train.sources or ()
    assert several.paths == (f"{file.parent}/c.jsonl", "/d.jsonl", f"{file.parent.parent}/*")


@pytest.mark.parametrize("file", ["project/jobs/job.yaml", "project/../project/jobs/job.yaml"])
def test_every_path_means_the_manifests_folder(home: Path, file: str) -> None:
    (job,) = local_jobs(Path(file))
    assert paths_of(job) == expected(home, home / "project" / "jobs")
    assert job.spec.models["judge"].source.path is None


def test_a_pattern_stays_one_in_a_folder_with_its_characters(home: Path) -> None:
    folder = home / "try[1]"
    folder.mkdir()
    manifest = MANIFEST.replace("{path: rows.jsonl,", "{path: 'rows-*.jsonl',")
    (folder / "job.yaml").write_text(manifest)
    (folder / "rows-7.jsonl").touch()
    data = local_jobs(folder / "job.yaml")[0].spec.data
    assert data.train.path is not None
    assert glob.glob(data.train.path) == [f"{folder}/rows-7.jsonl"]
    (folder / "job.yaml").write_text(MANIFEST)
    assert local_jobs(folder / "job.yaml")[0].spec.data.train.path == f"{folder}/rows.jsonl"


def test_standard_input_means_the_current_folder(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(MANIFEST.encode())))
    (job,) = local_jobs(Path("-"))
    assert paths_of(job) == expected(home, home)


def test_an_override_is_a_part_of_the_manifest(home: Path) -> None:
    overrides = ["spec.data.train.path=other.jsonl", "spec.telemetry.mlflow.trackingUri=http://a/"]
    (job,) = local_jobs(Path("project/jobs/job.yaml"), overrides)
    assert job.spec.data.train.path == str(home / "project" / "jobs" / "other.jsonl")
    assert job.spec.telemetry.mlflow and job.spec.telemetry.mlflow.tracking_uri == "http://a/"


def test_what_a_run_keeps_of_its_manifest_means_the_same_from_there(home: Path) -> None:
    """And what the manifest leaves to defaults stays left to them."""
    (job,) = local_jobs(Path("project/jobs/job.yaml"))
    kept = home / "kept.yaml"
    kept.write_text(manifest_text(job))
    (again,) = local_jobs(kept)
    assert again == job
    assert set(yaml.safe_load(kept.read_text())["spec"]) == set(yaml.safe_load(MANIFEST)["spec"])


@pytest.mark.parametrize("example", sorted(EXAMPLES.glob("*.yaml")), ids=lambda file: file.stem)
def test_examples_are_for_this_machine(example: Path) -> None:
    """With every kind of value that stands where a path might."""
    (written,), (job,) = read_jobs(example), local_jobs(example)
    changed = {path[-1] for path, *_ in differences(*map(spec_document, (written.spec, job.spec)))}
    assert changed <= {"path", "local"}


def test_what_is_behind_a_link_stays_there(home: Path) -> None:
    """`link/..` is the folder that the link leads to, and one up."""
    assert absolute("link/../rows.jsonl", home) == f"{home}/link/../rows.jsonl"
    assert absolute("../../rows.jsonl", home / "a" / "b") == f"{home}/rows.jsonl"


def test_a_manifest_is_at_one_place_however_it_is_reached(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "link").symlink_to(home / "project")
    (by_link,) = local_jobs(home / "link" / "jobs" / "job.yaml")
    monkeypatch.chdir(home / "link" / "jobs")
    (from_there,) = local_jobs(Path("job.yaml"))
    assert by_link == from_there and str(home / "project") in str(by_link.spec.data.train.path)


@pytest.mark.parametrize("address", ["file:/var/runs", "http://there:5000", "databricks"])
def test_an_address_of_a_tracker_is_no_folder(home: Path, address: str) -> None:
    file = home / "project" / "jobs" / "job.yaml"
    file.write_text(MANIFEST.replace("trackingUri: runs", f"trackingUri: '{address}'"))
    (job,) = local_jobs(file)
    assert job.spec.telemetry.mlflow and job.spec.telemetry.mlflow.tracking_uri == address


def test_a_run_that_kept_relative_paths_goes_on(home: Path) -> None:
    """Only where they mean the same."""
    file = home / "project" / "jobs" / "job.yaml"
    (written,), (job,) = read_jobs(file), local_jobs(file)
    before, now = spec_document(written.spec), spec_document(job.spec)
    kept = with_resolved_paths(before, job)
    left = {".".join(map(str, path)) for path, *_ in differences(kept, now)}
    assert left == {"code.local", "models.actor.source.path", "data.evaluation.path"}
    before["data"]["train"]["path"] = "others.jsonl"
    assert with_resolved_paths(before, job)["data"]["train"]["path"] == "others.jsonl"
