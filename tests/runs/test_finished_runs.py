"""Small runs of the examples: files and metrics.

Reproducibility is proved by test_resume: a run that was killed everywhere equals one that was not.
"""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from rlhf_cli.chat_model import ChatRequest, open_model

from .cli import Finished, run
from .records import end, records, reproducible, step_metrics

pytestmark = pytest.mark.ray

RUNS = {"grpo": (3, [0, 3]), "grpo_on_two": (7, [0, 3, 6, 7]), "ppo": (7, [0, 3, 6, 7])}
"""Steps of each run, and the steps after which it evaluates."""


@pytest.fixture(params=RUNS)
def name(request: pytest.FixtureRequest) -> str:
    """Name of a run."""
    return str(request.param)


@pytest.fixture
def finished(name: str, request: pytest.FixtureRequest) -> Finished:
    """Run of that name."""
    result: Finished = request.getfixturevalue(name)
    return result


def test_a_run_ends_well_and_writes_everything(name: str, finished: Finished) -> None:
    assert finished.code == 0, finished.output
    folder, (steps, evaluations) = finished.folder, RUNS[name]
    assert end(folder)["outcome"] == "succeeded"
    assert [record["step"] for record in records(folder, "step")] == list(range(1, steps + 1))
    assert [record["step"] for record in records(folder, "warm_start")] == [1, 2]
    assert [record["step"] for record in records(folder, "evaluation")] == evaluations
    summary = json.loads((folder / "summary.json").read_text())
    assert (summary["outcome"], summary["steps"]) == ("succeeded", steps)
    report = (folder / "report.html").read_text()
    assert "<svg" in report and "http://" not in report.replace("http://www.w3.org", "")
    assert list((folder / "tensorboard").glob("events.out.tfevents.*"))
    assert (folder / "model" / "model.safetensors").is_file()
    assert {"manifest.yaml", "plan.json"} <= {entry.name for entry in folder.iterdir()}


def test_training_and_generation_agree_on_log_probs(finished: Finished) -> None:
    for metrics in step_metrics(finished.folder):
        assert metrics["actor/log_prob_difference_max"] < 1e-3
        assert metrics["actor/log_prob_difference_mean"] < 1e-4


def test_metrics_are_finite_and_the_weights_move(finished: Finished) -> None:
    for metrics in step_metrics(finished.folder):
        assert all(math.isfinite(value) for value in metrics.values()), metrics
        assert metrics["actor/gradient_norm"] > 0
        assert metrics["score/invalid"] == 0
        assert 0 < metrics["reward/mean"] < 1
    assert end(finished.folder)["message"] == ""


def test_kl_is_measured_where_there_is_a_penalty(
    grpo: Finished, grpo_on_two: Finished, ppo: Finished
) -> None:
    penalties = {"actor/kl", "reward/kl"}
    assert not any(penalties & set(metrics) for metrics in step_metrics(grpo.folder))
    (loss_first, *_), (reward_first, reward_second, *_) = map(
        step_metrics, (grpo_on_two.folder, ppo.folder)
    )
    assert loss_first["actor/kl"] > 0, "later mini-batches have left the reference"
    assert abs(reward_first["reward/kl"]) < 1e-3, "at first the policy is the reference"
    assert abs(reward_second["reward/kl"]) > 0


def test_critics_are_trained(ppo: Finished) -> None:
    for metrics in step_metrics(ppo.folder):
        assert metrics["critic/loss"] > 0 and metrics["critic/gradient_norm"] > 0


def test_a_finished_run_is_not_repeated_without_fresh(scratch: Path, grpo: Finished) -> None:
    before = (grpo.folder / "metrics.jsonl").read_bytes()
    manifest = grpo.folder.with_suffix(".yaml")
    again = run(manifest, grpo.folder)
    assert again.code == 0 and "already finished" in again.output and "--fresh" in again.output
    assert (grpo.folder / "metrics.jsonl").read_bytes() == before
    moved = grpo.folder.rename(scratch / "moved")
    fresh = run(manifest, moved, "--fresh", "--seed", 1)
    assert fresh.code == 0, fresh.output
    aside = scratch / "moved.1"
    assert "put aside" in fresh.output and str(aside) in fresh.output
    assert (aside / "metrics.jsonl").read_bytes() == before
    assert reproducible(moved) != reproducible(aside), "another seed gives other numbers"
    aside.rename(grpo.folder)


def test_chat_talks_to_a_checkpoint_with_the_settings_of_its_job(grpo: Finished) -> None:
    checkpoint = grpo.folder / "checkpoints" / "step-00000003"
    with (
        open_model(ChatRequest(str(checkpoint))) as ours,
        open_model(ChatRequest(str(grpo.folder))) as theirs,
    ):
        weights = [(model.folder / "model.safetensors").read_bytes() for model in (ours, theirs)]
        assert weights[0] == weights[1]
        assert replace(ours, folder=theirs.folder) == theirs
