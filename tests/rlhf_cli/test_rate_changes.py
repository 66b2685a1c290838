"""A resume with more steps says how it changes learning rates."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlhf_api.changes import spec_document
from rlhf_api.reading.manifest import load_file
from rlhf_api.spec.job import RLHFJob
from rlhf_cli.rate_changes import changed_rates
from rlhf_flow.jobs.job_graphs import trace_job
from rlhf_runtime.checkpoint.record import CheckpointRecord
from rlhf_runtime.checkpoint.store import CheckpointStore

EXAMPLES = Path(__file__).parents[2] / "examples"


def job_of(
    steps: int, decay: str, example: str = "01-sort-grpo.yaml", warmup: int = 0, rate: float = 2e-4
) -> RLHFJob:
    training = "spec.models.actor.training"
    changes = [
        f"spec.schedule.steps={steps}",
        f"{training}.learningRateDecay={decay}",
        f"{training}.warmupSteps={warmup}",
        f"{training}.learningRate={rate}",
    ]
    (job,) = load_file(EXAMPLES / example, changes)
    return job


def saved_at(folder: Path, step: int, job: RLHFJob) -> CheckpointStore:
    store = CheckpointStore(str(folder))
    store.begin(step)
    store.commit(CheckpointRecord(step, 1, spec_document(job.spec)))
    return store


def sentences(job: RLHFJob, store: CheckpointStore) -> list[str]:
    return list(changed_rates(job, trace_job(job), store))


def test_a_rate_that_leaves_its_curve_is_said_with_both_numbers(tmp_path: Path) -> None:
    store = saved_at(tmp_path, 7, job_of(9, "Linear"))
    # 2e-4 x 5/12 in the eighth of 12 steps, 2e-4 x 3/9 and 2/9 in the seventh and eighth of 9.
    assert sentences(job_of(12, "Linear"), store) == [
        "the learning rate of actor is 8.33e-05 in its next update, after 6.67e-05 in its last "
        "one, and would be 4.44e-05 with the 9 steps of before: it decays until the last of 12 "
        "steps"
    ]


def test_more_steps_after_the_last_one_raise_the_rate(tmp_path: Path) -> None:
    (sentence,) = sentences(job_of(12, "Linear"), saved_at(tmp_path, 7, job_of(7, "Linear")))
    assert "is 8.33e-05 in its next update, after 2.86e-05 in its last one, and would be 0" in (
        sentence
    )


def test_a_changed_peak_is_no_change_of_the_curve(tmp_path: Path) -> None:
    store = saved_at(tmp_path, 7, job_of(9, "Linear", rate=1.0))
    (sentence,) = sentences(job_of(12, "Linear"), store)
    assert "is 8.33e-05 in its next update, after 0.333 in its last one" in sentence
    assert "and would be 4.44e-05" in sentence


def test_a_warm_up_does_not_depend_on_the_number_of_steps(tmp_path: Path) -> None:
    store = saved_at(tmp_path, 3, job_of(20, "Linear", warmup=10))
    assert sentences(job_of(30, "Linear", warmup=10), store) == []


def test_a_run_that_is_over_has_no_next_rate(tmp_path: Path) -> None:
    store = saved_at(tmp_path, 7, job_of(9, "Linear"))
    assert sentences(job_of(7, "Linear"), store) == []


@pytest.mark.parametrize(
    ("steps", "decay"),
    [
        pytest.param(7, "Cosine", id="as many steps"),
        pytest.param(12, "None", id="no decay"),
    ],
)
def test_a_rate_that_stays_on_its_curve_is_not_mentioned(
    tmp_path: Path, steps: int, decay: str
) -> None:
    store = saved_at(tmp_path, 4, job_of(7, decay))
    assert sentences(job_of(steps, decay), store) == []


def test_a_start_without_a_checkpoint_has_no_earlier_rate(tmp_path: Path) -> None:
    assert sentences(job_of(12, "Linear"), CheckpointStore(str(tmp_path))) == []


def test_only_trained_roles_with_a_decay_are_mentioned(tmp_path: Path) -> None:
    before, after = (job_of(steps, "Cosine", "02-sort-ppo.yaml") for steps in (70, 120))
    (sentence,) = sentences(after, saved_at(tmp_path, 30, before))
    assert sentence.startswith("the learning rate of actor is ")
