"""From a base model through supervised fine-tuning and a reward model to PPO on what it says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from .cli import run
from .manifests import example
from .records import records

pytestmark = pytest.mark.ray
ALONE: dict[str, Any] = {"warmStart": None}


def test_three_manifests_lead_from_a_base_model_to_ppo_on_a_learned_reward(place: Path) -> None:
    """The learned reward is scored twice, the second time tokenized anew: to the same number. A
    verifier is added to it, and a kill comes in between."""
    manifest = example("10", place / "chain-sft.yaml", {"schedule": ALONE | {"steps": 12}})
    tuned = run(manifest, place / "chain-sft")
    assert tuned.code == 0, tuned.output
    settings = {"source": {"path": str(tuned.folder / "model")}}
    sections: dict[str, Any] = {
        "models": {"reward_model": settings},
        "rewards": [],
        "schedule": ALONE | {"steps": 20, "promptsPerStep": 64, "miniBatchPrompts": 32},
    }
    judge = run(example("11", place / "chain-judge.yaml", sections), place / "chain-judge")
    assert judge.code == 0, judge.output
    model = {"path": str(judge.folder / "model")}
    sections = {
        "models": {"actor": settings},
        "rewards": [
            {"name": "learned", "model": model},
            {"name": "again", "weight": 0.5, "model": model | {"tokenizer": "Own"}},
            {"name": "digits", "weight": 2, "function": {"entrypoint": "verifiers:digits"}},
        ],
        "placement": {"type": "Split"},
        "schedule": ALONE | {"steps": 3, "evaluateEverySteps": 3},
        "checkpoint": {"everySteps": 1},
    }
    manifest = example("12", place / "chain-ppo.yaml", sections)
    words = ("--devices", 2, "--inject", "kill:rank=1,phase=train,step=3")
    made = run(manifest, place / "chain-ppo", *words)
    assert made.code == 0, made.output
    assert len(records(made.folder, "run")) == 2
    steps = {record["step"]: record["metrics"] for record in records(made.folder, "step")}
    assert list(steps) == [1, 2, 3]
    for metrics in steps.values():
        assert metrics["reward/again"] == pytest.approx(metrics["reward/learned"], abs=1e-5)
        assert abs(metrics["reward/learned"]) > 0.01 and metrics["reward/digits"] > 0
        terms = 1.5 * metrics["reward/learned"] + 2 * metrics["reward/digits"]
        assert metrics["reward/mean"] == pytest.approx(terms, rel=1e-4)
        assert metrics["reward/std"] > 0 and metrics["critic/gradient_norm"] > 0
    assert abs(steps[1]["critic/value_mean"]) > 0.01, "the critic has begun as the reward model"
    held_out = records(made.folder, "evaluation")[-1]["metrics"]
    assert held_out["evaluation/reward_mean"] != 0
