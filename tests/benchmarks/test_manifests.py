"""What the benchmarks ask of our runtime are valid jobs, equal to what their baselines do."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlhf_api.plan import GraphName
from rlhf_api.reading.manifest import load_jobs
from rlhf_flow.job_graphs import trace_job


@pytest.mark.parametrize("name", ["sort", "long"])
def test_the_peers_jobs_are_valid_and_carry_the_scenario(name: str) -> None:
    from peers import SCENARIOS, manifest_text

    scenario = SCENARIOS[name]
    (job,) = load_jobs(manifest_text(scenario, Path("/models/tiny"), 7), name, [])
    assert job.spec.schedule.steps == 7
    assert job.spec.schedule.prompts_per_step == scenario.prompts
    assert job.spec.rollout.max_response_tokens == scenario.max_new_tokens
    assert job.spec.models["actor"].training.learning_rate == scenario.learning_rate


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
