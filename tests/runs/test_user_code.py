"""Algorithms, operations and verifiers of a user's own, in real runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from .cli import RLHF, run
from .manifests import example
from .records import end, step_metrics

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
        assert metrics["policy/gradient_norm"] > 0
        assert "groups/equal" not in metrics, "the custom algorithm compares no groups"
    assert "no opinion on" in made.output, "the first error is shown"


def test_a_reward_and_a_cost_have_critics_of_their_own(place: Path) -> None:
    """Safe-RLHF's four signals: each is its own, none equals another."""
    manifest = example(
        "01",
        place / "safe.yaml",
        {
            "algorithm": {
                "type": "Custom",
                "custom": {"entrypoint": "algorithms:RewardAndCost", "parameters": {"weight": 0.5}},
            },
            "rewards": [
                {"function": {"entrypoint": "verifiers:digits"}},
                {
                    "name": "length",
                    "role": "cost",
                    "weight": 0.1,
                    "function": {"entrypoint": "verifiers:length"},
                },
            ],
        },
    )
    made = run(manifest, place / "safe", "--devices", 1, "--steps", 2)
    assert made.code == 0, made.output
    for metrics in step_metrics(made.folder):
        assert metrics["cost/mean"] == pytest.approx(0.1 * metrics["cost/length"])
        assert metrics["cost/mean"] != metrics["reward/mean"]
        assert metrics["critic/loss"] != metrics["cost_critic/loss"] > 0
        assert metrics["critic/gradient_norm"] > 0 and metrics["policy/gradient_norm"] > 0
        assert metrics["score/invalid"] == 0


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
