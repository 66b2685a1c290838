"""`rlhf compare` shows what differs between runs, and nothing else."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from rlhf_cli.app import app
from rlhf_runtime.telemetry.records import (
    EndRecord,
    EvaluationRecord,
    Outcome,
    RunRecord,
    StepRecord,
)
from rlhf_runtime.telemetry.run_folder import RunFolder

from .run_manifests import run_manifest


def written(folder: Path, rate: str, slope: float, steps: int = 3) -> Path:
    with RunFolder(folder) as run:
        training = {"models": {"actor": {"training": {"learningRate": float(rate)}}}}
        run.write_manifest(
            run_manifest({**training, "env": [{"name": "A", "value": f"secret-{rate}"}]})
        )
        run.append(RunRecord("sort", "GRPO", "1 CPU rank", str(folder), 3, 0.0))
        run.append(EvaluationRecord(0, {"evaluation/reward_mean": 0.0}))
        for step in range(1, steps + 1):
            metrics = {"reward/mean": slope * step, "actor/loss": 1.0 / step}
            run.append(StepRecord(step, metrics, {}, 2.0, 100, memory={"rank 0": 1 << 30}))
        if steps == 3:
            run.append(EvaluationRecord(3, {"evaluation/reward_mean": 3 * slope}))
            run.append(EndRecord(Outcome.SUCCEEDED, 9.0, model_step=3))
    return folder


def compare(*words: object) -> Result:
    return CliRunner().invoke(app, ["compare", *map(str, words)])


@pytest.fixture
def runs(tmp_path: Path) -> list[Path]:
    return [written(tmp_path / "slow", "1.0e-5", 0.1), written(tmp_path / "fast", "1.0e-4", 0.25)]


def test_results_and_different_settings_are_shown(runs: list[Path]) -> None:
    shown = compare(*runs).stdout
    lines = [re.split(r"  +", line.strip()) for line in shown.splitlines()]
    assert ["result", "slow", "fast"] in lines and ["setting", "slow", "fast"] in lines
    assert ["steps", "3 of 3", "3 of 3"] in lines
    held_out = ["0.000 → 0.300 (best 0.300, step 3)", "0.000 → 0.750 (best 0.750, step 3)"]
    assert ["reward, held out", *held_out] in lines
    assert ["total time", "9.00 s", "9.00 s"] in lines
    assert ["training", "6.00 s", "6.00 s"] in lines
    assert ["step, median", "2.00 s", "2.00 s"] in lines and ["tokens/s", "50", "50"] in lines
    assert ["largest process", "1.0 GiB", "1.0 GiB"] in lines
    assert ["models.actor.training.learningRate", "1e-05", "0.0001"] in lines
    assert "algorithm.type" not in shown, "it is the same"
    assert "secret" not in shown


def test_plain_data_have_summaries_and_settings(runs: list[Path]) -> None:
    document = json.loads(compare(*runs, "--json").stdout)
    assert [run["name"] for run in document["runs"]] == ["slow", "fast"]
    assert document["runs"][1]["summary"]["held_out_reward"]["last"] == 0.75
    assert document["settings"] == {"models.actor.training.learningRate": ["1e-05", "0.0001"]}


def test_the_page_has_a_line_for_each_run(runs: list[Path], tmp_path: Path) -> None:
    page = tmp_path / "comparison.html"
    done = compare(*runs, "--html", page)
    assert done.exit_code == 0 and f"wrote {page}" in done.stdout
    html = page.read_text()
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', html)
    assert found is not None
    charts = json.loads(found[1])
    assert len(charts) == 5, "held-out reward, reward, loss, step time, tokens/s"
    assert "Settings that differ" in html and "secret" not in html
    assert html.count("slow</li>") == html.count("fast</li>") == len(charts)


def test_a_run_that_goes_on_and_a_manifest_of_another_release(
    runs: list[Path], tmp_path: Path
) -> None:
    going_on = written(tmp_path / "other" / "fast", "1.0e-5", 0.1, steps=1)
    (runs[1] / "manifest.yaml").write_text("apiVersion: rlhf-operator.dev/v9\n")
    page = tmp_path / "comparison.html"
    shown = compare(*runs, going_on, "--html", page).stdout
    assert "unfinished" in shown and "1 of 3" in shown
    assert "learningRate" not in shown, "the readable manifests are equal"
    names = [f"{run.parent.name}/{run.name}" for run in (*runs, going_on)]
    assert shown.splitlines()[0].split() == ["result", *names]
    assert f"Manifests of another release are not compared: {names[1]}." in page.read_text()


def test_what_cannot_be_compared_is_refused(runs: list[Path], tmp_path: Path) -> None:
    alone = compare(runs[0])
    assert alone.exit_code == 2 and "got 1, allowed 2 to 8" in alone.stderr
    many = compare(*[runs[0]] * 9)
    assert many.exit_code == 2 and "got 9, allowed 2 to 8" in many.stderr
    (tmp_path / "empty").mkdir()
    empty = compare(runs[0], tmp_path / "empty")
    assert empty.exit_code == 2 and "NotARun" in empty.stderr
