"""The chain from a base model through supervised fine-tuning and a reward model to PPO."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from .cli import run
from .manifests import digit_pairs, example, write_rows
from .records import records

pytestmark = pytest.mark.ray
ALONE: dict[str, Any] = {"warmStart": None}
PAIRS_STEPS = 16


def test_three_manifests_lead_from_a_base_model_to_ppo_on_a_learned_reward(scratch: Path) -> None:
    # The learned reward counts twice, the second time with a tokenizer of its own: the same number.
    # A verifier is added. The last two jobs are killed on the way.
    manifest = example("10", scratch / "chain-sft.yaml", {"schedule": ALONE | {"steps": 12}})
    tuned = run(manifest, scratch / "chain-sft")
    assert tuned.code == 0, tuned.output
    settings = {"source": {"path": str(tuned.folder / "model")}}
    pairs = digit_pairs(96)
    rows = write_rows(scratch / "pairs.jsonl", pairs[:80])
    sections: dict[str, Any] = {
        "models": {"reward_model": settings},
        "rewards": [],
        "data": {"train": {"path": str(rows), "builtin": None}},
        "schedule": ALONE | {"steps": PAIRS_STEPS, "promptsPerStep": 64, "miniBatchPrompts": 32},
        "checkpoint": {"everySteps": 4},
    }
    words = ("--devices", 2, "--inject", "kill:rank=1,phase=train,step=7")
    manifest = example("11", scratch / "chain-judge.yaml", sections)
    trained = run(manifest, scratch / "chain-judge", *words)
    assert trained.code == 0, trained.output
    assert_learned(trained.folder, pairs[80:])
    model = {"path": str(trained.folder / "model")}
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
    manifest = example("12", scratch / "chain-ppo.yaml", sections)
    words = ("--devices", 2, "--inject", "kill:rank=1,phase=train,step=3")
    finished = run(manifest, scratch / "chain-ppo", *words)
    assert finished.code == 0, finished.output
    assert len(records(finished.folder, "run")) == 2
    steps = {record["step"]: record["metrics"] for record in records(finished.folder, "step")}
    assert list(steps) == [1, 2, 3]
    for metrics in steps.values():
        assert metrics["reward/again"] == pytest.approx(metrics["reward/learned"], abs=1e-5)
        assert abs(metrics["reward/learned"]) > 0.01 and metrics["reward/digits"] > 0
        terms = 1.5 * metrics["reward/learned"] + 2 * metrics["reward/digits"]
        assert metrics["reward/mean"] == pytest.approx(terms, rel=1e-4)
        assert metrics["reward/std"] > 0 and metrics["critic/gradient_norm"] > 0
    assert abs(steps[1]["critic/value_mean"]) > 0.01, "the critic has begun as the reward model"
    evaluation = records(finished.folder, "evaluation")[-1]["metrics"]
    assert evaluation["evaluation/reward_mean"] != 0


def assert_learned(folder: Path, unseen: Sequence[Mapping[str, str]]) -> None:
    """Check that a reward model learned to order pairs, also unseen ones."""
    assert len(records(folder, "run")) == 2
    metrics = {record["step"]: record["metrics"] for record in records(folder, "step")}
    assert list(metrics) == list(range(1, PAIRS_STEPS + 1))
    first, last = metrics[1], metrics[PAIRS_STEPS]
    assert first["reward_model/loss"] == pytest.approx(math.log(2), abs=0.01)
    assert last["reward_model/loss"] < 0.2 and last["reward_model/accuracy"] > 0.9
    assert last["reward_model/margin"] > 1 > abs(first["reward_model/margin"])
    assert mean_accuracy(folder / "model", unseen) > 0.9


def mean_accuracy(folder: Path, pairs: Sequence[Mapping[str, str]]) -> float:
    """Share of pairs whose chosen response the classifier in a folder scores higher."""
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)

    def score(pair: Mapping[str, str], which: str) -> float:
        text = f"{pair['prompt']}{pair[which]}{tokenizer.eos_token}"
        with torch.no_grad():
            return float(model(**tokenizer(text, return_tensors="pt")).logits)

    right = [score(pair, "chosen") > score(pair, "rejected") for pair in pairs]
    return sum(right) / len(right)
