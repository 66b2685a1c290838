"""`rlhf profile`: where it writes, and what it leaves when it is stopped."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from rlhf_api.spec.models import Precision
from rlhf_api.spec.resources import Device
from rlhf_cli.app import app
from rlhf_planner.problem.profile import (
    BlockCurves,
    BlockShape,
    Constants,
    Curve,
    GenerationCurves,
    Measured,
    ModelProfile,
    PassCurves,
    Profile,
    TrainingCurves,
    read_profile,
)
from rlhf_runtime.profiling.subjects import Subject

from .test_plan import job

LINE = Curve(at=(0, 10), seconds=(0, 1))
BLOCK = BlockCurves(tokens=LINE, pairs=LINE)
PASSES = PassCurves(block=BLOCK, embedding=LINE, head=LINE)
Asked = dict[str, Any]


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    path = tmp_path / "job.yaml"
    path.write_text(job())
    return path


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Asked:
    """What would be measured, and what lies beside the manifest then; `raises` is raised instead,
    if it is set."""
    found: Asked = {}

    def measure(
        subjects: Sequence[Subject], device: Device, ranks: int, say: Callable[[str], None]
    ) -> Profile:
        found.update(subjects=subjects, device=device, ranks=ranks)
        say("passes")
        found["beside"] = sorted(path.name for path in tmp_path.iterdir())
        if "raises" in found:
            raise found["raises"]
        return a_profile(subjects)

    monkeypatch.setattr("rlhf_runtime.profiling.ranks.measure", measure)
    return found


def a_profile(subjects: Sequence[Subject]) -> Profile:
    """Each token takes a tenth of a second."""
    models = tuple(
        ModelProfile(
            name=each.name,
            shape=BlockShape.of(each.shape),
            precision=Precision.FLOAT32,
            training=TrainingCurves(
                forward=PASSES, backward=PASSES, recomputed=PASSES, optimizer=LINE
            ),
            generation=GenerationCurves(
                prefill=BLOCK, embedding=LINE, sequences=LINE, cached=LINE, step=LINE
            ),
        )
        for each in subjects
    )
    return Profile(
        measured=Measured(device=Device.CPU, name="a core", ranks=1, threads=1, torch="2"),
        constants=Constants(memory_bytes_per_second=1e9),
        models=models,
    )


def run(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["profile", *arguments])
    return result.exit_code, result.stdout, result.stderr


def test_a_profile_lies_beside_its_manifest(manifest: Path, asked: Asked) -> None:
    code, out, err = run(str(manifest))
    place = manifest.parent / "job.profile.json"
    assert code == 0 and out.splitlines()[-1] == f"wrote {place}"
    assert read_profile(place) == a_profile(asked["subjects"])
    assert err == "passes\n" and "forward 1e+03 ms, training 2e+03 ms" in out
    assert (asked["device"], asked["ranks"]) == (Device.CPU, 1)
    assert [each.name for each in asked["subjects"]] == ["actor"]


def test_place_ranks_and_fields_may_be_given(manifest: Path, asked: Asked) -> None:
    place = manifest.parent / "profiles" / "mine.json"
    cut = "spec.models.actor.training.microBatchTokens=77"
    code, _, _ = run(str(manifest), "-o", str(place), "--devices", "2", "--set", cut)
    assert code == 0 and place.is_file()
    assert asked["ranks"] == 2
    assert [each.micro_batch_tokens for each in asked["subjects"]] == [77]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), RuntimeError("broken")])
def test_what_is_not_finished_leaves_nothing(
    manifest: Path, asked: Asked, error: BaseException
) -> None:
    place = manifest.parent / "job.profile.json"
    place.write_text("an earlier one")
    asked["raises"] = error
    code, out, _ = run(str(manifest))
    assert code == (130 if isinstance(error, KeyboardInterrupt) else 1) and not out
    assert place.read_text() == "an earlier one"
    assert sorted(path.name for path in manifest.parent.iterdir()) == [
        "job.profile.json",
        "job.yaml",
    ]


def test_nothing_is_made_before_all_is_measured(manifest: Path, asked: Asked) -> None:
    """So that a process that is killed leaves nothing either."""
    place = manifest.parent / "profiles" / "mine.json"
    assert run(str(manifest), "-o", str(place))[0] == 0
    assert asked["beside"] == ["job.yaml"]
    assert [path.name for path in place.parent.iterdir()] == ["mine.json"]
    assert place.stat().st_mode & 0o777 == 0o644


def test_a_folder_is_no_place(manifest: Path, asked: Asked) -> None:
    code, _, err = run(str(manifest), "-o", str(manifest.parent))
    assert code == 2 and "the profile cannot be written" in err
    assert not asked


def test_a_place_that_cannot_be_written_is_refused_before(manifest: Path, asked: Asked) -> None:
    code, _, err = run(str(manifest), "-o", str(manifest / "profile.json"))
    assert code == 2 and "the profile cannot be written" in err
    assert not asked


def test_a_plan_expects_what_was_measured(manifest: Path, asked: Asked) -> None:
    """And says of what devices; a profile of other ranks is refused."""
    assert run(str(manifest))[0] == 0
    place = str(manifest.parent / "job.profile.json")

    def plan(devices: int, *more: str) -> tuple[int, str, str]:
        arguments = ["plan", str(manifest), "--devices", str(devices), *more]
        result = CliRunner().invoke(app, arguments)
        return result.exit_code, " ".join(result.stdout.split()), result.stderr

    code, out, err = plan(1, "--profile", place)
    assert code == 0, err
    assert "Layers as measured on a core, for prompts" in out
    assert "data sheets" not in out and "order of magnitude" not in out
    assert "Arithmetic from data sheets of" in plan(1)[1]
    code, _, err = plan(2, "--profile", place)
    assert code == 2 and "the profile is of another number of ranks on a CPU: got 1" in err
