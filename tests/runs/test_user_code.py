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

UV_RUN = (str(RLHF.with_name("uv")), "run", "--no-project")
"""As many start what a project needs; Ray would start every worker like that, too."""

UNUSED = ("--set", "spec.models.judge={source: {builtin: TinyLlama}}")
"""A model of a role that the algorithm does not have."""


def test_a_custom_algorithm_runs_by_its_own_protocol_with_a_verifier_that_often_raises(
    place: Path,
) -> None:
    manifest = example(
        "01",
        place / "custom.yaml",
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
    made = run(manifest, place / "custom", "--devices", 2, *UNUSED)
    assert made.code == 0, made.output
    assert "notice models.judge is not used" in made.output
    for metrics in step_metrics(made.folder):
        assert 0 < metrics["score/invalid"] < 64
        assert metrics["score/invalid"] % 8 == 0, "all eight samples of a prompt or none"
        assert metrics["score/excluded"] == metrics["score/raised"] == metrics["score/invalid"]
        assert metrics["score/rescored"] > metrics["score/raised"], "the others of their batches"
        assert metrics["actor/gradient_norm"] > 0
        assert "groups/equal" not in metrics, "the custom algorithm compares no groups"
    found = re.findall(
        r"reward reward: raised: the response '.*' to SortDigits, row \d+", made.output
    )
    assert len(found) == 1 and "no opinion on" in made.output, "the first error is shown, once"
    rows = {record["row"] for record in records(made.folder, "unscored")}
    report = (made.folder / "report.html").read_text()
    assert len(rows) > 1 and all(row in report for row in rows)


def custom(name: str, **parameters: object) -> dict[str, object]:
    entrypoint = f"algorithms:{name}"
    return {"type": "Custom", "custom": {"entrypoint": entrypoint, "parameters": parameters}}


def test_prompts_are_taken_until_there_are_enough_also_after_a_kill(place: Path) -> None:
    """Of eight prompts a round twelve are wanted, whose samples' scores differ. The run begins
    anew, and its first step is the same again. The responses of all rounds are kept."""
    manifest = example(
        "01",
        place / "refill.yaml",
        {"algorithm": custom("Refill", prompts=12), "schedule": {"warmStart": None}},
    )
    words = ("--devices", 2, "--inject", "kill:rank=1,phase=train,step=2")
    made = run(manifest, place / "refill", *words)
    assert made.code == 0, made.output
    first, again, second = records(made.folder, "step")
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
        file = made.folder / "saved" / "responses" / f"step-{step['step']:06d}.jsonl"
        kept = [json.loads(line) for line in file.read_text().splitlines()]
        assert len(kept) == step["metrics"]["repeat/rounds"] * 8 * 8
        assert len({row["prompt"] for row in kept}) == len(kept) / 8
        mean = sum(row["score"] for row in kept) / len(kept)
        assert mean == pytest.approx(step["metrics"]["reward/mean"], rel=1e-5)


def test_a_reference_that_caught_up_generates_and_comes_back_after_a_kill(place: Path) -> None:
    """It catches up in steps 2 and 4. The run goes on from the checkpoint of step 2: the repeated
    step 3 has the same numbers only if the reference is what it was. What an operation keeps comes
    back as well."""
    schedule = {"steps": 4, "promptsPerStep": 16, "miniBatchPrompts": 8, "warmStart": None}
    sections = {
        "algorithm": custom("CatchUp"),
        "schedule": schedule,
        "checkpoint": {"everySteps": 2},
        "models": {"actor": {"training": {"learningRate": 1.0e-3, "warmupSteps": 0}}},
    }
    manifest = example("01", place / "catch-up.yaml", sections)
    words = ("--devices", 2, "--inject", "kill:rank=1,phase=train,step=4")
    made = run(manifest, place / "catch-up", *words)
    assert made.code == 0, made.output
    steps = records(made.folder, "step")
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
        kept = (made.folder / "saved" / "average" / f"step-{step:06d}.jsonl").read_text()
        average = pytest.approx(sum(means[:step]) / step, rel=1e-6)
        assert json.loads(kept) == {"steps": step, "average": average}


@pytest.mark.nightly  # the test above generates with two models
def test_a_frozen_teacher_generates_beside_the_policy(place: Path) -> None:
    manifest = example("01", place / "distill.yaml", {"algorithm": custom("Distill")})
    made = run(manifest, place / "distill", "--devices", 2, "--steps", 2)
    assert made.code == 0, made.output
    for metrics in step_metrics(made.folder):
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


def test_a_student_learns_answers_without_rewards_or_an_actor(place: Path) -> None:
    manifest = without_rewards(
        *(place / "imitate.yaml", "Imitate", "student"),
        data={"train": {"path": str(write_rows(place / "rows.jsonl", digit_rows(64)))}},
        schedule={"steps": 4, "promptsPerStep": 64},
    )
    words = ["run", str(manifest), "--output", str(place / "refused"), "--devices", "1"]
    refused = CliRunner().invoke(app, words)
    assert refused.exit_code == 3 and "data.train.answerField names" in refused.stderr
    text = manifest.read_text()
    manifest.write_text(text.replace("rows.jsonl", "rows.jsonl\n      answerField: answer"))
    made = run(manifest, place / "imitate", "--devices", 2)
    assert made.code == 0, made.output
    assert_nothing_generates_or_scores(made.folder, made.output)
    losses = [metrics["student/loss"] for metrics in step_metrics(made.folder)]
    assert losses == sorted(losses, reverse=True) and losses[-1] < losses[0] - 0.5
    assert [record["tokens"] for record in records(made.folder, "step")] == [64 * 14] * 4
    model = AutoModelForCausalLM.from_pretrained(made.folder / "model")
    assert model.config.architectures == ["LlamaForCausalLM"]


def test_a_verifier_that_must_not_fail_ends_the_run_also_under_uv(place: Path) -> None:
    manifest = example(
        "01",
        place / "strict.yaml",
        {"rewards": [{"function": {"entrypoint": "verifiers:often_raises", "onError": "Fail"}}]},
    )
    made = run(manifest, place / "strict", "--devices", 1, inside=UV_RUN)
    assert made.code == 3, made.output
    last = end(made.folder)
    assert (last["outcome"], last["reason"]) == ("failed", "RewardFailed")
    assert "no opinion on" in last["message"]
    assert f"\nRewardFailed: {last['message']}" in made.output
    assert "ray::" not in made.output, "the worker's own stack is not the user's business"
    assert (made.folder / "report.html").is_file()
