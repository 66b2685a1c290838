"""What the driver makes of a pass that is over."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from unittest.mock import MagicMock

import pytest

from rlhf_api.plan import GraphName
from rlhf_api.reading.manifest import load_file
from rlhf_api.spec.checkpoint import EVALUATION_LENGTH, EVALUATION_REWARD, EXACT_MATCH, ModelFormat
from rlhf_api.spec.rewards import RewardSpec
from rlhf_planner.plan import make_plan
from rlhf_planner.problem.devices import GIB, local_inventory
from rlhf_runtime.controller import job_run
from rlhf_runtime.controller.job_run import JobRun
from rlhf_runtime.controller.pass_records import evaluation_metrics, step_record
from rlhf_runtime.controller.saves import best_model_text
from rlhf_runtime.controller.steps import PassResult, PassRunner, SubmittedPass
from rlhf_runtime.controller.stop import StopRequest
from rlhf_runtime.controller.worker_groups import HostGroup, WorkerGroup
from rlhf_runtime.errors import ModelNotSaved, model_not_saved

from .test_transition_orders import Notes
from .test_transition_orders import Rows as DataHost

EXAMPLE = Path(__file__).parents[3] / "examples" / "01-sort-grpo.yaml"


def test_held_out_metrics_are_those_that_manifests_may_name() -> None:
    (job,) = load_file(EXAMPLE, [])
    measured = {"reward/mean": 0.5, "reward/reward": 0.25, "response/length_mean": 6.0}
    named = {f"reward/{reward.name}": 0.25 for reward in job.spec.rewards}
    done = PassResult({**measured, **named}, {}, (), 1.0, 1, {})
    declared = {reward.name: "exact_match" for reward in job.spec.rewards}
    assert evaluation_metrics(done, ("reward",), job.spec.rewards, declared) == dict(
        zip((EVALUATION_REWARD, EVALUATION_LENGTH, EXACT_MATCH), (0.5, 6.0, 0.25), strict=True)
    )


def test_every_verifier_that_declares_a_metric_has_it_on_held_out_prompts() -> None:
    """Under its own name, whichever role it is a term of; a metric without a value is left out."""
    rewards = [
        RewardSpec.model_validate({"name": name, "role": role, "function": {"entrypoint": "a:b"}})
        for name, role in (("right", "reward"), ("plain", "reward"), ("harm", "cost"), ("x", "y"))
    ]
    measured = {"reward/mean": 1.0, "reward/right": 0.5, "reward/plain": 0.25, "cost/harm": 0.125}
    done = PassResult({**measured, "response/length_mean": 6.0}, {}, (), 1.0, 1, {})
    declared = {"right": "accuracy", "harm": "harmful", "x": "unscored"}
    assert evaluation_metrics(done, ("reward", "cost"), rewards, declared) == {
        EVALUATION_LENGTH: 6.0,
        EVALUATION_REWARD: 1.0,
        "evaluation/accuracy": 0.5,
        "evaluation/harmful": 0.125,
    }


def test_every_source_of_held_out_prompts_has_metrics_of_its_own() -> None:
    """Those over all prompts keep their names, which checkpoints are compared by."""
    (job,) = load_file(EXAMPLE, [])
    (reward,) = job.spec.rewards
    measured = {"reward/mean": 0.5, "reward/a/mean": 0.25, "reward/b/mean": 0.75}
    exact = {f"reward/{part}{reward.name}": 0.125 for part in ("", "a/")}
    passing = {"reward/pass_at_2": 1.0, "reward/b/pass_at_2": 0.5, "other/b/pass_at_2": 0.0}
    lengths = {"response/length_mean": 6.0, "response/a/length_mean": 3.0}
    done = PassResult({**measured, **exact, **passing, **lengths}, {}, (), 1.0, 1, {})
    declared = {reward.name: "exact_match"}
    assert evaluation_metrics(done, ("reward",), job.spec.rewards, declared, ("a", "b")) == {
        EVALUATION_REWARD: 0.5,
        EVALUATION_LENGTH: 6.0,
        EXACT_MATCH: 0.125,
        "evaluation/a/reward_mean": 0.25,
        "evaluation/a/exact_match": 0.125,
        "evaluation/b/reward_mean": 0.75,
        "evaluation/a/length_mean": 3.0,
        "evaluation/pass_at_2": 1.0,
        "evaluation/b/pass_at_2": 0.5,
    }


def test_a_better_step_without_a_checkpoint_is_told() -> None:
    name = EVALUATION_REWARD
    evaluations = [(0, {name: 0.5}), (3, {name: 0.02}), (6, {name: 0.01}), (9, {})]
    best = "the model is that of step 0, with evaluation/reward_mean 0.5 (checkpoint.finalModel)"
    assert best_model_text(name, 0, evaluations) == best
    lost = "; step 0 had 0.5, and has no checkpoint that can be used"
    assert best_model_text(name, 3, evaluations).endswith(f"0.02 (checkpoint.finalModel){lost}")
    assert best_model_text(name, 9, evaluations) == (
        f"the model is that of step 9 (checkpoint.finalModel){lost}"
    )
    assert best_model_text(name, 9, [(9, {})]) == (
        "the model is that of step 9 (checkpoint.finalModel)"
    )


def test_where_nothing_scores_there_is_no_reward() -> None:
    done = PassResult({"response/length_mean": 6.0, "judge/loss": 0.5}, {}, (), 1.0, 1, {})
    assert evaluation_metrics(done, (), (), {}) == {EVALUATION_LENGTH: 6.0}
    assert not [name for name in step_record(1, done, ()).metrics if "reward" in name]


def test_an_evaluation_in_which_all_verifiers_abstained_has_no_reward() -> None:
    (job,) = load_file(EXAMPLE, [])
    done = PassResult({"response/length_mean": 6.0}, {}, (), 1.0, 1, {}, is_unscored=True)
    measured = {reward.name: "exact_match" for reward in job.spec.rewards}
    metrics = evaluation_metrics(done, ("reward",), job.spec.rewards, measured)
    assert metrics == {EVALUATION_LENGTH: 6.0}


def test_a_model_that_finds_no_space_is_written_again_and_nothing_is_trained_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint that is missing comes first: the model can be made of it, too."""
    (job,) = load_file(EXAMPLE, ["spec.schedule.steps=1", "spec.schedule.warmStart=null"])
    _, plan = make_plan(job, [local_inventory(1, 16 * GIB)])
    full = model_not_saved(tmp_path, OSError(errno.ENOSPC, "No space left on device"))
    done: list[str] = []

    def train(run: JobRun, _checkpoint: object) -> None:
        done.append("train")
        run._step = 1

    def call_role(role: str, method: str, *arguments: object) -> None:
        if method == "save":
            done.append("model")
            part = tmp_path / "model.new" / "part"
            part.touch()
            if done.count("model") < 4:
                raise full

    def until_written(write: Callable[[], object]) -> None:
        with pytest.raises(ModelNotSaved):
            write()
        assert not (tmp_path / "model.new").exists(), "others need its space"
        with pytest.raises(ModelNotSaved):
            write()
        write()

    workers, source = MagicMock(), tmp_path / "source"
    workers.folders, workers.call_role = {"actor": source}, call_role
    monkeypatch.setattr(job_run, "Workers", lambda *_: workers)
    monkeypatch.setattr(JobRun, "_train", train)
    monkeypatch.setattr(job_run, "copy_tokenizer", lambda *_: None)
    monkeypatch.setattr(job_run, "saved_format", lambda *_: ModelFormat.FLOAT32)
    # An old checkpoint goes for the model, which is not enough.
    made_space = iter([True, False, False])
    # Space after training and in the second attempt.
    retries = iter([True, False, False, True, False, False])
    checkpoints = MagicMock(evaluations=[], **{"should_retry": lambda: next(retries)})
    checkpoints.begin = lambda ranks, step: done.append(f"checkpoint {step}")
    checkpoints.make_space_for_model = lambda: next(made_space)
    run = JobRun(
        *(job, plan, MagicMock(), MagicMock(), checkpoints, StopRequest(), MagicMock()),
        until_written=lambda write: write() if write == checkpoints.claim else until_written(write),
    )
    assert run.run(tmp_path / "model", None)
    assert done == [
        *("train", "checkpoint 1", "model", "model", "checkpoint 1", "model", "model"),
    ]
    assert (tmp_path / "model" / "part").exists()


def test_evaluations_of_a_warm_start_have_no_samples_and_name_its_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (job,) = load_file(
        EXAMPLE, ["spec.schedule.warmStart.maxSteps=2", "spec.schedule.warmStart.promptsPerStep=4"]
    )
    _, plan = make_plan(job, [local_inventory(1, 16 * GIB)])
    sampled: list[tuple[GraphName, int, bool]] = []

    class Runner(PassRunner):
        """Waits for nothing: the first training step ends the test."""

        def wait(self, submitted: SubmittedPass) -> PassResult:
            backend = submitted.backend
            sampled.append((backend.graph, backend.step, backend.responses is not None))
            if backend.graph is GraphName.STEP:
                raise KeyboardInterrupt
            return PassResult({"response/length_mean": 6.0}, {}, (), 1.0, 1, {}, is_unscored=True)

    workers, recorder = MagicMock(job=job, plan=plan, incarnation="one"), MagicMock()
    workers.counts = {"evaluation": 4}
    workers.worker_groups = {"local": WorkerGroup([Notes()]), None: HostGroup([Notes()])}
    workers.data.batch = DataHost()
    monkeypatch.setattr(job_run, "PassRunner", Runner)
    monkeypatch.setattr(job_run, "Workers", lambda *_: workers)
    checkpoints = MagicMock(evaluations=[])
    run = JobRun(job, plan, MagicMock(), recorder, checkpoints, StopRequest(), MagicMock())
    with pytest.raises(KeyboardInterrupt):
        run.run(tmp_path, None)
    assert sampled == [
        (GraphName.WARM_START, 1, False),
        (GraphName.WARM_START, 2, False),
        (GraphName.EVALUATION, 0, False),
        (GraphName.EVALUATION, 0, True),
        (GraphName.STEP, 1, True),
    ]
    notices = [call.args[0] for call in recorder.notice.call_args_list]
    begin = "nothing is left to measure in the evaluation after"
    assert [text.partition(":")[0] for text in notices] == [
        f"{begin} step 2 of the warm start",
        f"{begin} step 0",
    ]
