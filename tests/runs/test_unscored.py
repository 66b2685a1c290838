"""Steps and evaluations without any score: they are left out and counted, then the job ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from .cli import run
from .manifests import example
from .records import end, records, step_metrics

pytestmark = pytest.mark.ray

ABSTAINING = {
    "rewards": [{"function": {"entrypoint": "verifiers:abstains"}}],
    "schedule": {"steps": 9, "warmStart": None, "evaluateEverySteps": 1},
    "checkpoint": {"everySteps": 1},
    "failurePolicy": {"maxUnscoredSteps": 3},
}


def test_steps_in_which_nothing_is_scored_are_left_out_until_it_is_enough(scratch: Path) -> None:
    manifest = example("01", scratch / "abstaining.yaml", ABSTAINING)
    ended = run(manifest, scratch / "abstaining", "--devices", 2)
    assert ended.code == 3, ended.output
    steps = step_metrics(ended.folder)
    assert len(steps) == 3
    for metrics in steps:
        assert metrics["actor/empty_updates"] == 1
        assert metrics["score/abstained"] == metrics["score/excluded"] > 0
        assert metrics["score/invalid"] == 0
        assert "actor/gradient_norm" not in metrics and "reward/mean" not in metrics
    first = records(ended.folder, "evaluation")[0]["metrics"]
    assert "evaluation/length_mean" in first and "evaluation/reward_mean" not in first
    assert "nothing is left to measure in the evaluation after step 0" in ended.output
    assert "nothing is left to train on from step 1 on" in ended.output
    last = end(ended.folder)
    assert last["reason"] == "NothingScored"
    assert "none in the 3 steps up to 3, allowed fewer than 3" in last["message"]
    assert (ended.folder / "checkpoints" / "step-00000001" / "checkpoint.json").is_file()
    assert " restart " not in ended.output, "the same would happen again"
