"""Built-in algorithms that need more than a call each of an actor and a reward, in real runs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import pytest

from rlhf_api.spec.data import PreferenceFields
from rlhf_runtime.data.files import read_file
from rlhf_runtime.data.row_responses import parse_pair

from ..scoring_service import scoring_service
from .cli import run
from .manifests import example
from .records import records, step_metrics, without_pace

pytestmark = pytest.mark.ray


def test_a_reward_and_a_cost_have_critics_of_their_own_and_a_multiplier(scratch: Path) -> None:
    # Safe-RLHF: reward and cost have different signals; the multiplier continues after a kill.
    sections = {
        "algorithm": {
            "type": "SafeRLHF",
            "safeRLHF": {"costBudget": 0.2, "pretrainingWeight": 0.1},
        },
        "data": {"pretraining": {"builtin": "SortDigits", "rowsPerStep": 6}},
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
    manifest = example("01", scratch / "safe.yaml", sections)
    words = ("--devices", 1, "--steps", 3, "--inject", "kill:rank=0,phase=train,step=3")
    finished = run(manifest, scratch / "safe", *words)
    assert finished.code == 0, finished.output
    multiplier = 1.0
    last_of = {record["step"]: record["metrics"] for record in records(finished.folder, "step")}
    assert list(last_of) == [1, 2, 3]
    for metrics in last_of.values():
        assert metrics["cost/mean"] == pytest.approx(0.1 * metrics["cost/length"])
        assert metrics["cost/mean"] != metrics["reward/mean"]
        multiplier *= math.exp(0.1 * multiplier * (metrics["cost/mean"] - 0.2))
        assert metrics["cost/multiplier"] == pytest.approx(multiplier, rel=1e-4)
        assert metrics["critic/loss"] != metrics["cost_critic/loss"] > 0
        assert metrics["critic/gradient_norm"] > 0 and metrics["actor/gradient_norm"] > 0
        assert metrics["score/invalid"] == 0
        assert 1.5 < metrics["actor/cross_entropy"] < 3.5, "of pretraining rows, beside the loss"


@pytest.mark.nightly  # CatchUp generates twice; test_http_scorer.py asks a service
def test_a_greedy_response_is_the_baseline_of_all_samples(scratch: Path) -> None:
    # Scored by a function and a service; evaluation samples every prompt twice.
    evaluation = {"builtin": "SortDigits", "samplesPerPrompt": 2, "temperature": 1.0}
    passing = {"passAtK": [1, 2], "passScore": 0.6}
    digits = {"name": "digits", "function": {"entrypoint": "verifiers:digits"}}
    with scoring_service(lambda sample: float(sample["finished"])) as url:
        served = {"name": "ended", "weight": 0.5, "http": {"url": url, "batchSize": 8}}
        sections = {"data": {"evaluation": evaluation | passing}, "rewards": [digits, served]}
        manifest = example("08", scratch / "remax.yaml", sections)
        finished = run(manifest, scratch / "remax", "--devices", 2, "--steps", 2)
    assert finished.code == 0, finished.output
    for record in records(finished.folder, "evaluation"):
        once, twice = (record["metrics"][f"evaluation/pass_at_{k}"] for k in (1, 2))
        assert 0 < once < twice < 1
    for metrics in step_metrics(finished.folder):
        assert metrics["actor/gradient_norm"] > 0
        assert metrics["reward/mean"] != metrics["reward/mean.actor.2"], (
            "that of the greedy responses"
        )
        assert metrics["reward/ended"] == pytest.approx(1 - metrics["response/truncated"])
        terms = metrics["reward/digits"] + 0.5 * metrics["reward/ended"]
        assert metrics["reward/mean"] == pytest.approx(terms)


@pytest.mark.nightly  # test_user_code.py repeats rounds, with a kill
def test_dapo_trains_on_prompts_whose_responses_differ(scratch: Path) -> None:
    sections = {"algorithm": {"dapo": {"maxRounds": 3, "overlongTokens": 4}}}
    manifest = example("04", scratch / "dapo.yaml", sections)
    finished = run(manifest, scratch / "dapo", "--devices", 2, "--steps", 2)
    assert finished.code == 0, finished.output
    for metrics in step_metrics(finished.folder):
        assert 1 <= metrics["repeat/rounds"] <= 3 and metrics["actor/gradient_norm"] > 0
        assert 0 < metrics["reward/overlong_penalty"] <= 1
        if metrics["repeat/rounds"] == 1:
            assert metrics["groups/equal"] == 0, "one round was enough, as all groups were mixed"


def test_a_refreshed_reference_comes_back_after_a_kill(scratch: Path) -> None:
    # The reference copies the actor's weights after steps 2 and 4; the run is killed in step 5, and
    # resumes from the checkpoint of step 3. Steps 3 and 5 begin with equal models, so rewards of
    # responses are 0. Step 4 has the same numbers again only if the reference is that of step 2.
    # Without a warm start nothing else saves the reference.
    sections = {
        "algorithm": {"onlineDPO": {"referenceEverySteps": 2}},
        "models": {"actor": {"training": {"warmupSteps": 0}}},
        "schedule": {"steps": 5, "warmStart": None},
        "checkpoint": {"everySteps": 3},
    }
    manifest = example("13", scratch / "dpo.yaml", sections)
    words = ("--devices", 2, "--inject", "kill:rank=1,phase=train,step=5")
    finished = run(manifest, scratch / "dpo", *words)
    assert finished.code == 0, finished.output
    assert len(records(finished.folder, "run")) == 2
    steps = records(finished.folder, "step")
    assert [record["step"] for record in steps] == [1, 2, 3, 4, 4, 5]
    first, again = (without_pace(record["metrics"]) for record in steps[3:5])
    assert first == again
    metrics = {record["step"]: record["metrics"] for record in steps}
    margins = {step: abs(metrics[step]["actor/margin"]) for step in metrics}
    assert margins[1] < 1e-6 and margins[3] < 1e-6 and margins[5] < 1e-6
    assert margins[2] > 1e-5 and margins[4] > 1e-5
    check_pairs(finished.folder, metrics)


def saved_pairs(folder: Path) -> dict[str, bytes]:
    """Contents of a run's files of pairs, by name."""
    return {file.name: file.read_bytes() for file in (folder / "saved" / "pairs").iterdir()}


def check_pairs(folder: Path, steps: Mapping[int, Mapping[str, float]]) -> None:
    """Check the files of pairs on which steps trained."""
    # Preference data cannot have an empty response, so such pairs are missing.
    assert set(saved_pairs(folder)) == {f"step-{step:06d}.jsonl" for step in steps}
    for step, metrics in steps.items():
        file = folder / "saved" / "pairs" / f"step-{step:06d}.jsonl"
        rows = list(read_file(file, "data.train.path"))
        pairs, empty = 8 * (1 - metrics["groups/equal"]), 64 * metrics["response/empty"]
        assert max(1, pairs - empty) <= len(rows) <= pairs + 1e-3
        for row in rows:
            pair = parse_pair(row, "prompt", PreferenceFields())
            texts = [message["content"] for message in (*pair.chosen, *pair.rejected)]
            assert texts == [row["chosen"], row["rejected"]]
            assert row["answer"] == "".join(sorted(pair.prompt.removesuffix("=")))
            assert row["chosen_score"] > row["rejected_score"] and row["step"] == step
