"""What the driver makes of a pass that is over."""

from __future__ import annotations

from pathlib import Path

from rlhf_api.reading.manifest import load_file
from rlhf_api.spec.checkpoint import EXACT_MATCH, HELD_OUT_LENGTH, HELD_OUT_REWARD
from rlhf_runtime.controller.job_run import evaluation_metrics, step_record
from rlhf_runtime.controller.steps import Pass

EXAMPLE = Path(__file__).parents[3] / "examples" / "01-sort-grpo.yaml"


def test_held_out_metrics_are_those_that_manifests_may_name() -> None:
    (job,) = load_file(EXAMPLE, [])
    measured = {"reward/mean": 0.5, "reward/reward": 0.25, "response/length_mean": 6.0}
    named = {f"reward/{reward.name}": 0.25 for reward in job.spec.rewards}
    done = Pass({**measured, **named}, {}, (), 1.0, 1, {}, ())
    assert evaluation_metrics(job.spec, ("reward",), done) == dict(
        zip((HELD_OUT_REWARD, HELD_OUT_LENGTH, EXACT_MATCH), (0.5, 6.0, 0.25), strict=True)
    )


def test_where_nothing_scores_there_is_no_reward() -> None:
    (job,) = load_file(EXAMPLE, [])
    spec = job.spec.model_copy(update={"rewards": ()})
    done = Pass({"response/length_mean": 6.0, "judge/loss": 0.5}, {}, (), 1.0, 1, {}, ())
    assert evaluation_metrics(spec, (), done) == {HELD_OUT_LENGTH: 6.0}
    assert not [name for name in step_record(1, done, ()).metrics if "reward" in name]
