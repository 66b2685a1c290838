"""Algorithms, operations and verifiers of a user's own, in real runs."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM
from typer.testing import CliRunner

from rlhf_cli.app import app

from .cli import RLHF, run
from .manifests import digit_rows, example, without_rewards, write_rows
from .records import end, records, step_metrics, without_pace

pytestmark = pytest.mark.ray

# Many start commands of a project like that. Ray would start every worker so, too.
UV_RUN = (str(RLHF.with_name("uv")), "run", "--no-project")
"""Words before a command, under uv."""

UNUSED = ("--set", "spec.models.judge={source: {builtin: TinyLlama}}")
"""Option with a role that the algorithm does not have."""


def test_a_custom_algorithm_runs_by_its_own_protocol_with_a_verifier_that_often_raises(
    scratch: Path,
) -> None:
    manifest = example(
        "01",
        scratch / "custom.yaml",
        {
            "algorithm": {
                "type": "Custom",
                "custom": {"entrypoint": "algorithms:Reinforce", "parameters": {"baseline": 0.2}},
            },
            "rewards": [
                {"function": {"entrypoint": "verifiers:often_raises"}},
            ],
        },
    )
    finished = run(manifest, scratch / "custom", "--devices", 2, *UNUSED)
    assert finished.code == 0, finished.output
    assert "notice models.judge is not used" in finished.output
    for metrics in step_metrics(finished.folder):
        assert 0 < metrics["score/invalid"] < 64
        assert metrics["score/invalid"] % 8 == 0, "all eight samples of a prompt or none"
        assert metrics["score/excluded"] == metrics["score/raised"] == metrics["score/invalid"]
        assert metrics["score/rescored"] > metrics["score/raised"], "the others of their batches"
        assert metrics["actor/gradient_norm"] > 0
        assert "groups/equal" not in metrics, "the custom algorithm compares no groups"
    shown = re.findall(
        r"reward reward: raised: the response '.*' to SortDigits, row \d+", finished.output
    )
    assert len(shown) == 1 and "no opinion on" in finished.output, "the first error is shown, once"
    rows = {record["row"] for record in records(finished.folder, "unscored")}
    report = (finished.folder / "report.html").read_text()
    assert len(rows) > 1 and all(row in report for row in rows)


def custom(name: str, **parameters: object) -> dict[str, object]:
    entrypoint = f"algorithms:{name}"
    return {"type": "Custom", "custom": {"entrypoint": entrypoint, "parameters": parameters}}


def test_rounds_repeat_until_prompts_suffice_also_after_a_kill(scratch: Path) -> None:
    # The algorithm needs twelve prompts whose samples' scores differ; a round has eight prompts.
    # There is no checkpoint, so the first step is repeated. Responses of all rounds are saved.
    manifest = example(
        "01",
        scratch / "refill.yaml",
        {"algorithm": custom("Refill", prompts=12), "schedule": {"warmStart": None}},
    )
    words = ("--devices", 2, "--inject", "kill:rank=1,phase=train,step=2")
    finished = run(manifest, scratch / "refill", *words)
    assert finished.code == 0, finished.output
    first, again, second = records(finished.folder, "step")
    for step in (first, again, second):
        metrics = step["metrics"]
        assert 2 <= metrics["repeat/rounds"] <= 4
        assert step["tokens"] > metrics["repeat/rounds"] * 8 * 8 * 8, "all rounds' tokens"
        assert metrics["actor/gradient_norm"] > 0 and 0 < metrics["reward/mean"] < 1
    untimed = [
        {
            name: value
            for name, value in step["metrics"].items()
            if not name.startswith(("time/", "throughput/"))
        }
        for step in (first, again)
    ]
    assert untimed[0] == untimed[1]
    for step in (again, second):
        file = finished.folder / "saved" / "responses" / f"step-{step['step']:06d}.jsonl"
        kept = [json.loads(line) for line in file.read_text().splitlines()]
        assert len(kept) == step["metrics"]["repeat/rounds"] * 8 * 8
        assert len({row["prompt"] for row in kept}) == len(kept) / 8
        mean = sum(row["score"] for row in kept) / len(kept)
        assert mean == pytest.approx(step["metrics"]["reward/mean"], rel=1e-5)


def test_a_reference_that_caught_up_generates_and_comes_back_after_a_kill(scratch: Path) -> None:
    # The reference copies weights in steps 2 and 4. The run resumes from the checkpoint of step 2:
    # the repeated step 3 has the same numbers only if the reference is restored. State of an
    # operation is restored as well.
    schedule = {"steps": 4, "promptsPerStep": 16, "miniBatchPrompts": 8, "warmStart": None}
    sections = {
        "algorithm": custom("CatchUp"),
        "schedule": schedule,
        "checkpoint": {"everySteps": 2},
        "models": {"actor": {"training": {"learningRate": 1.0e-3, "warmupSteps": 0}}},
    }
    manifest = example("01", scratch / "catch-up.yaml", sections)
    words = ("--devices", 2, "--inject", "kill:rank=1,phase=train,step=4")
    finished = run(manifest, scratch / "catch-up", *words)
    assert finished.code == 0, finished.output
    steps = records(finished.folder, "step")
    assert [record["step"] for record in steps] == [1, 2, 3, 3, 4]
    first, second, third, again, fourth = (without_pace(record["metrics"]) for record in steps)
    assert third == again
    for metrics in (first, third):
        assert metrics["reward/mean.actor.2"] != metrics["reward/mean.reference"], (
            "the reference is behind"
        )
    for metrics in (second, fourth):
        assert metrics["reward/mean.actor.2"] == metrics["reward/mean.reference"], (
            "it generates what it took"
        )
    for metrics in (first, second, third, fourth):
        assert metrics["actor/loss"] > 0 and metrics["actor/gradient_norm"] > 0
        rewards = metrics["actor/chosen_reward"] - metrics["actor/rejected_reward"]
        assert metrics["actor/margin"] == pytest.approx(rewards, abs=1e-6)
    means = [metrics["reward/mean"] for metrics in (first, second, third, fourth)]
    for step in (1, 2, 3, 4):
        kept = (finished.folder / "saved" / "average" / f"step-{step:06d}.jsonl").read_text()
        average = pytest.approx(sum(means[:step]) / step, rel=1e-6)
        assert json.loads(kept) == {"steps": step, "average": average}


@pytest.mark.nightly  # the test above generates with two models
def test_a_frozen_teacher_generates_as_well_as_the_policy(scratch: Path) -> None:
    manifest = example("01", scratch / "distill.yaml", {"algorithm": custom("Distill")})
    finished = run(manifest, scratch / "distill", "--devices", 2, "--steps", 2)
    assert finished.code == 0, finished.output
    for metrics in step_metrics(finished.folder):
        assert metrics["actor/loss"] > 0 and "teacher/loss" not in metrics


def assert_nothing_generates_or_scores(folder: Path, output: str) -> None:
    (*_, startup) = records(folder, "startup")
    assert "first generation" not in startup["phases"] and not records(folder, "evaluation")
    names = {name for metrics in step_metrics(folder) for name in metrics}
    assert not {name for name in names if name.startswith(("reward/", "score/", "response/"))}
    assert " loss=" in output and " reward=" not in output and "None" not in output
    report = (folder / "report.html").read_text()
    assert ">None<" not in report and ">NaN<" not in report
    plan = json.loads((folder / "plan.json").read_text())
    assert plan["generations"] == []


def test_a_student_learns_answers_without_rewards_or_an_actor(scratch: Path) -> None:
    manifest = without_rewards(
        *(scratch / "imitate.yaml", "Imitate", "student"),
        data={"train": {"path": str(write_rows(scratch / "rows.jsonl", digit_rows(64)))}},
        schedule={"steps": 4, "promptsPerStep": 64},
    )
    words = ["run", str(manifest), "--output", str(scratch / "refused"), "--devices", "1"]
    refused = CliRunner().invoke(app, words)
    assert refused.exit_code == 3 and "data.train.answerField names" in refused.stderr
    text = manifest.read_text()
    manifest.write_text(text.replace("rows.jsonl", "rows.jsonl\n      answerField: answer"))
    finished = run(manifest, scratch / "imitate", "--devices", 2)
    assert finished.code == 0, finished.output
    assert_nothing_generates_or_scores(finished.folder, finished.output)
    losses = [metrics["student/loss"] for metrics in step_metrics(finished.folder)]
    assert losses == sorted(losses, reverse=True) and losses[-1] < losses[0] - 0.5
    assert [record["tokens"] for record in records(finished.folder, "step")] == [64 * 14] * 4
    model = AutoModelForCausalLM.from_pretrained(finished.folder / "model")
    assert model.config.architectures == ["LlamaForCausalLM"]


def test_a_verifier_that_must_not_fail_ends_the_run_also_under_uv(scratch: Path) -> None:
    manifest = example(
        "01",
        scratch / "strict.yaml",
        {"rewards": [{"function": {"entrypoint": "verifiers:often_raises", "onError": "Fail"}}]},
    )
    finished = run(manifest, scratch / "strict", "--devices", 1, inside=UV_RUN)
    assert finished.code == 3, finished.output
    last = end(finished.folder)
    assert (last["outcome"], last["reason"]) == ("failed", "RewardFailed")
    assert "no opinion on" in last["message"]
    assert f"\nRewardFailed: {last['message']}" in finished.output
    assert "ray::" not in finished.output, "the worker's own stack is not the user's business"
    assert (finished.folder / "report.html").is_file()
