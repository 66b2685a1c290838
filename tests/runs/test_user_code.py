"""Algorithms, operations and verifiers of a user's own, in real runs."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from .cli import RLHF, run
from .manifests import example
from .records import end, records, step_metrics

pytestmark = pytest.mark.ray

UV_RUN = (str(RLHF.with_name("uv")), "run", "--no-project")
"""As many start what a project needs; Ray would start every worker like that, too."""


def test_a_custom_algorithm_runs_with_a_verifier_that_often_raises(place: Path) -> None:
    manifest = example(
        "01",
        place / "custom.yaml",
        {
            "algorithm": {
                "type": "Custom",
                "custom": {"entrypoint": "algorithms:Reinforce", "parameters": {"baseline": 0.2}},
            },
            "rewards": [
                {"function": {"entrypoint": "verifiers:often_raises", "batchSize": 1}},
            ],
        },
    )
    made = run(manifest, place / "custom", "--devices", 2)
    assert made.code == 0, made.output
    for metrics in step_metrics(made.folder):
        assert 0 < metrics["score/invalid"] < 64
        assert metrics["score/invalid"] % 8 == 0, "all eight samples of a prompt or none"
        assert metrics["score/excluded"] == metrics["score/invalid"]
        assert metrics["actor/gradient_norm"] > 0
        assert "groups/equal" not in metrics, "the custom algorithm compares no groups"
    assert "no opinion on" in made.output, "the first error is shown"


def custom(name: str, **parameters: object) -> dict[str, object]:
    entrypoint = f"algorithms:{name}"
    return {"type": "Custom", "custom": {"entrypoint": entrypoint, "parameters": parameters}}


def test_a_reward_and_a_cost_have_critics_of_their_own_and_a_multiplier(place: Path) -> None:
    """Safe-RLHF's signals: each is its own, none equals another; the multiplier goes on after an
    interruption."""
    sections = {
        "algorithm": custom("SafeRlhf", limit=0.2),
        "checkpoint": {"everySteps": 1},
        "rewards": [
            {"function": {"entrypoint": "verifiers:digits"}},
            {
                "name": "length",
                "role": "cost",
                "weight": 0.1,
                "function": {"entrypoint": "verifiers:length"},
            },
        ],
    }
    manifest = example("01", place / "safe.yaml", sections)
    words = ("--devices", 1, "--steps", 3, "--inject", "kill:rank=0,phase=train,step=3")
    made = run(manifest, place / "safe", *words)
    assert made.code == 0, made.output
    multiplier = 1.0
    last_of = {record["step"]: record["metrics"] for record in records(made.folder, "step")}
    assert list(last_of) == [1, 2, 3]
    for metrics in last_of.values():
        assert metrics["cost/mean"] == pytest.approx(0.1 * metrics["cost/length"])
        assert metrics["cost/mean"] != metrics["reward/mean"]
        multiplier *= math.exp(0.1 * multiplier * (metrics["cost/mean"] - 0.2))
        assert metrics["cost/multiplier"] == pytest.approx(multiplier, rel=1e-4)
        assert metrics["critic/loss"] != metrics["cost_critic/loss"] > 0
        assert metrics["critic/gradient_norm"] > 0 and metrics["actor/gradient_norm"] > 0
        assert metrics["score/invalid"] == 0


def test_a_greedy_response_is_the_baseline_of_all_samples(place: Path) -> None:
    manifest = example("01", place / "remax.yaml", {"algorithm": custom("ReMax")})
    made = run(manifest, place / "remax", "--devices", 2, "--steps", 2)
    assert made.code == 0, made.output
    assert all(metrics["actor/gradient_norm"] > 0 for metrics in step_metrics(made.folder))


def test_a_frozen_teacher_generates_beside_the_policy(place: Path) -> None:
    manifest = example("01", place / "distill.yaml", {"algorithm": custom("Distill")})
    made = run(manifest, place / "distill", "--devices", 2, "--steps", 2)
    assert made.code == 0, made.output
    for metrics in step_metrics(made.folder):
        assert metrics["actor/loss"] > 0 and "teacher/loss" not in metrics


def test_a_verifier_that_must_not_fail_ends_the_run_also_under_uv(place: Path) -> None:
    manifest = example(
        "01",
        place / "strict.yaml",
        {"rewards": [{"function": {"entrypoint": "verifiers:often_raises", "onError": "Fail"}}]},
    )
    made = run(manifest, place / "strict", "--devices", 1, inside=UV_RUN)
    assert made.code == 3, made.output
    last = end(made.folder)
    assert (last["outcome"], last["reason"]) == ("failed", "RewardFailed")
    assert "no opinion on" in last["message"]
    assert f"\nRewardFailed: {last['message']}" in made.output
    assert "ray::" not in made.output, "the worker's own stack is not the user's business"
    assert (made.folder / "report.html").is_file()
