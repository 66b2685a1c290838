"""Training that is not finite any more: steps are left out and counted, then the job ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from .cli import run
from .manifests import example
from .records import end, step_metrics

pytestmark = pytest.mark.ray

ENORMOUS = {
    "algorithm": {
        "type": "Custom",
        "custom": {"entrypoint": "algorithms:Reinforce", "parameters": {"baseline": 0.0}},
    },
    "rewards": [{"function": {"entrypoint": "verifiers:enormous"}}],
    "schedule": {"steps": 9, "warmStart": None},
    "checkpoint": {"everySteps": 1},
    "failurePolicy": {"maxSkippedSteps": 3},
}


def test_updates_that_are_not_finite_are_left_out_until_it_is_enough(scratch: Path) -> None:
    manifest = example("01", scratch / "enormous.yaml", ENORMOUS)
    ended = run(manifest, scratch / "enormous", "--devices", 2)
    assert ended.code == 3, ended.output
    steps = step_metrics(ended.folder)
    assert [metrics["actor/skipped_updates"] for metrics in steps] == [1.0] * 3
    last = end(ended.folder)
    assert last["reason"] == "TrainingDiverged"
    assert "actor left out in the 3 steps up to 3, allowed fewer than 3" in last["message"]
    assert (ended.folder / "checkpoints" / "step-00000001" / "checkpoint.json").is_file()
    assert " restart " not in ended.output, "the same would happen again"
