"""Jobs of benchmarks are valid, and equal to those of their baselines."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest

from rlhf_api.plan import GraphName
from rlhf_api.reading.manifest import load_file, load_jobs
from rlhf_api.spec.job import RLHFJob
from rlhf_flow.jobs.job_graphs import trace_job
from rlhf_runtime.telemetry.records import RunRecords, StepRecord


@pytest.mark.parametrize("name", ["sort", "long", "real"])
def test_the_peers_jobs_are_valid_and_carry_the_scenario(name: str) -> None:
    from peer_runs import manifest_text
    from peers import SCENARIOS
    from real import scenario_of

    scenario = (SCENARIOS | {"real": scenario_of(Path("/sums/model"))})[name]
    (job,) = load_jobs(manifest_text(scenario, Path("/models/tiny"), 7), name, [])
    assert job.spec.schedule.steps == 7
    assert job.spec.schedule.prompts_per_step == scenario.prompts
    assert job.spec.rollout.max_response_tokens == scenario.max_new_tokens
    assert job.spec.models["actor"].training.learning_rate == scenario.learning_rate


def test_trials_are_valid_jobs_that_start_from_models_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import learning

    jobs: dict[str, RLHFJob] = {}

    def run(manifest: Path, _: Path, options: Sequence[str]) -> tuple[RunRecords, None]:
        changes = [word for flag, word in pairwise(options) if flag == "--set"]
        (jobs[manifest.name[:2]],) = load_file(manifest, changes)
        step = StepRecord(1, {"model/accuracy": 0.5}, {}, seconds=1.0, tokens=0)
        return RunRecords(steps=(step,)), None

    monkeypatch.setattr(learning, "rlhf_run", run)
    real_models: list[str] = []
    monkeypatch.setattr(learning, "make_real_model", lambda: real_models.append(number))
    monkeypatch.setattr(learning, "quiet", lambda command: Path(command[2]).mkdir())
    for number, trial in learning.TRIALS.items():
        jobs.clear()
        learning.learn(number, 0, tmp_path, None)
        assert (number in real_models) == trial.uses_real_model
        earlier = {trial.starts_from, trial.scored_by} - {""}
        assert set(jobs) == {*earlier, number}, "each is run before"
        job = jobs[number]
        folders = {name: str(learning.run_folder(name, 0, tmp_path) / "model") for name in earlier}
        if trial.starts_from:
            (source, *_) = (model.source for model in job.spec.models.values())
            assert source.path == folders[trial.starts_from]
        if trial.scored_by:
            assert job.spec.rewards[0].model.path == folders[trial.scored_by]
        assert getattr(job.spec.schedule, "warm_start", None) is None


def test_the_step_benchmark_runs_example_01_from_a_warm_model() -> None:
    from step import EXAMPLE, job_from

    job = job_from(EXAMPLE, Path("/models/warm model"), 45)
    assert job.spec.schedule.warm_start is None
    assert job.spec.models["actor"].source.path == "/models/warm model"


def test_the_plain_loop_has_the_batch_of_example_01() -> None:
    from plain_settings import CLIP_RANGE, LEARNING_RATE, MAX_NEW, PROMPTS, SAMPLES, WARMUP
    from step import EXAMPLE, job_from

    job = job_from(EXAMPLE, Path("/m"), 1)
    spec = job.spec
    training = spec.models["actor"].training
    assert (spec.schedule.prompts_per_step, spec.rollout.samples_per_prompt) == (PROMPTS, SAMPLES)
    assert spec.rollout.max_response_tokens == MAX_NEW
    assert (training.learning_rate, training.warmup_steps) == (LEARNING_RATE, WARMUP)
    (training,) = trace_job(job)[GraphName.STEP].trainings("actor")
    assert training.options.loss.clip_range == CLIP_RANGE
