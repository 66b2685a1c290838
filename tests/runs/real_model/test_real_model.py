"""Runs of a real language model: its tokenizer, chat template, tied weights and saved files."""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

from ...benchmarks.programs import run_smallest
from ...heavy_starts import Heavy, count_start
from ..cli import EXAMPLES, ROOT, USER_CODE, Finished, run
from ..manifests import write_rows
from ..records import records, reproducible, step_metrics
from .conversations import answer_log_probs, conversations, write_job

pytestmark = pytest.mark.ray
LOAD_MODEL = Path(__file__).with_name("load_model.py")
ROWS = 8
SCHEDULE = {"promptsPerStep": ROWS, "evaluateEverySteps": 0}


def run_one_step(example: str, folder: Path, overrides: Mapping[str, object]) -> Finished:
    """Train one step of an example; trainer and engine must agree on probabilities.

    Args:
        example: pattern of its file's name.
        folder: of the run.
        overrides: values by path below `spec`.
    """
    (file,) = EXAMPLES.glob(example)
    changes = [f"--set=spec.{path}={value}" for path, value in overrides.items()]
    finished = run(file, folder, "--steps=1", *changes)
    assert finished.code == 0, finished.output
    (metrics,) = step_metrics(finished.folder)
    assert metrics["actor/log_prob_difference_max"] < 1e-3
    return finished


def test_the_demo_trains_the_whole_model_and_shows_its_answers(demo: Path, scratch: Path) -> None:
    overrides = {
        "models.actor.source.path": demo / "model",
        "data.train.path": demo / "train.jsonl",
        "data.evaluation.path": demo / "held-out.jsonl",
        "data.evaluation.maxRows": 4,
        "rollout.samplesPerPrompt": 2,
        "schedule.promptsPerStep": 4,
        "schedule.evaluateEverySteps": 1,
    }
    finished = run_one_step("17-*.yaml", scratch / "sums", overrides)
    shown = subprocess.check_output(
        [sys.executable, ROOT / "tools/real_model/show_answers.py", finished.folder, "--rows=3"],
        text=True,
    )
    assert "What is 8 + 11?" in shown and shown.count("What is") == 3
    (first, last) = records(finished.folder, "evaluation")
    scores = [record["metrics"]["evaluation/reward_mean"] for record in (first, last)]
    assert f"{scores[0]:.2f} after step 0, {scores[1]:.2f} after step 1" in shown


def test_the_model_calls_a_tool_after_a_short_warm_start(demo: Path, scratch: Path) -> None:
    overrides = {
        "models.actor.source.path": demo / "tool-model",
        "data.train.path": demo / "calculations.jsonl",
        "data.evaluation.path": demo / "calculations-held-out.jsonl",
        "data.evaluation.maxRows": 2,
        "rollout.samplesPerPrompt": 4,
        "schedule.promptsPerStep": 2,
        "schedule.evaluateEverySteps": 0,
    }
    finished = run_one_step("20-*.yaml", scratch / "tool", overrides)
    (metrics,) = step_metrics(finished.folder)
    assert metrics["environment/calls"] > 0 and metrics["environment/malformed_calls"] < 1
    template = (finished.folder / "model" / "chat_template.jinja").read_text()
    assert template == (demo / "tool-model" / "chat_template.jinja").read_text()


def test_grpo_resumes_exactly_and_saves_what_transformers_and_vllm_load(
    demo: Path, cut_model: Path, scratch: Path
) -> None:
    data = {"path": str(demo / "train.jsonl"), "promptField": "question", "maxRows": 32}
    manifest = write_job(
        scratch / "cut-grpo.yaml",
        "GRPO",
        "actor",
        cut_model,
        data={"train": data},
        rewards=[{"function": {"entrypoint": "verifiers:length"}}],
        code={"local": str(USER_CODE)},
        rollout={"samplesPerPrompt": 4, "maxPromptTokens": 48, "maxResponseTokens": 12},
        schedule=SCHEDULE | {"steps": 2, "promptsPerStep": 4},
        checkpoint={"everySteps": 1},
    )
    undisturbed = run(manifest, scratch / "cut-grpo", "--devices=2")
    killed = run(
        *(manifest, scratch / "cut-grpo-killed", "--devices=2"),
        *("--inject", "kill:rank=1,phase=train,step=2"),
    )
    assert undisturbed.code == killed.code == 0, undisturbed.output + killed.output
    metrics = [
        # A step whose checkpoint was not yet complete is computed, and recorded, again.
        {(kind, step): values for kind, step, values in reproducible(finished.folder)}
        for finished in (undisturbed, killed)
    ]
    assert metrics[0] == metrics[1]
    weights = [
        (finished.folder / "model" / "model.safetensors").read_bytes()
        for finished in (undisturbed, killed)
    ]
    assert weights[0] == weights[1]
    model = AutoModelForCausalLM.from_pretrained(undisturbed.folder / "model")
    before = AutoModelForCausalLM.from_pretrained(cut_model)
    assert model.lm_head.weight is model.model.embed_tokens.weight, "tied"
    assert not torch.equal(model.lm_head.weight, before.lm_head.weight)
    tokenizers = [
        AutoTokenizer.from_pretrained(f) for f in (undisturbed.folder / "model", cut_model)
    ]
    assert tokenizers[0].chat_template == tokenizers[1].chat_template
    answers = load_in_both(undisturbed.folder / "model", "What is 8 + 11?")
    ours, theirs = answers["transformers"], answers["vllm"]
    assert ours["tokens"] == theirs["tokens"] and len(ours["tokens"]) > 1
    assert ours["log_probs"] == pytest.approx(theirs["log_probs"], abs=1e-4)


def load_in_both(model: Path, prompt: str) -> dict[str, Any]:
    """What transformers and vLLM answer, in a process without our package."""
    environment = {
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "TORCH_COMPILE_DISABLE": "1",
    }
    count_start(Heavy.ENGINE)
    loaded = subprocess.run(
        [sys.executable, LOAD_MODEL, model, prompt],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert loaded.returncode == 0, loaded.stderr[-4000:]
    answers: dict[str, Any] = json.loads(loaded.stdout.splitlines()[-1])
    return answers


def test_the_loss_on_conversations_is_that_of_transformers(cut_model: Path, scratch: Path) -> None:
    rows = conversations(ROWS)
    file = write_rows(scratch / "conversations.jsonl", [{"messages": row} for row in rows])
    data = {"path": str(file), "promptField": "messages", "answerField": "messages"}
    manifest = write_job(
        scratch / "cut-sft.yaml",
        "SFT",
        "actor",
        cut_model,
        data={"train": data},
        schedule=SCHEDULE | {"steps": 2},
    )
    finished = run(manifest, scratch / "cut-sft", "--devices=2")
    assert finished.code == 0, finished.output
    first, second = step_metrics(finished.folder)
    log_probs = torch.cat(answer_log_probs(cut_model, rows))
    assert first["actor/loss"] == pytest.approx(-log_probs.mean().item(), rel=1e-4)
    assert second["actor/loss"] < first["actor/loss"]


@pytest.mark.parametrize("algorithm", ["DPO", "RewardModel"])
def test_pairs_of_conversations(algorithm: str, cut_model: Path, scratch: Path) -> None:
    chosen = conversations(ROWS)
    rejected = [[*row[:-1], {"role": "assistant", "content": "No."}] for row in chosen]
    pairs = [{"chosen": c, "rejected": r} for c, r in zip(chosen, rejected, strict=True)]
    file = write_rows(scratch / f"pairs-{algorithm}.jsonl", pairs)
    role = {"DPO": "actor", "RewardModel": "reward_model"}[algorithm]
    data: dict[str, Any] = {"path": str(file), "preferences": {}}
    source = cut_model
    if algorithm == "RewardModel":
        source = scratch / "cut-bfloat16"
        AutoModelForCausalLM.from_pretrained(cut_model, dtype=torch.bfloat16).save_pretrained(
            source
        )
        AutoTokenizer.from_pretrained(cut_model).save_pretrained(source)
    manifest = write_job(
        scratch / f"cut-{algorithm}.yaml",
        algorithm,
        role,
        source,
        data={"train": data},
        schedule=SCHEDULE | {"steps": 2},
    )
    finished = run(manifest, scratch / f"cut-{algorithm}", "--devices=2")
    assert finished.code == 0, finished.output
    first, last = step_metrics(finished.folder)
    assert first[f"{role}/loss"] == pytest.approx(math.log(2), abs=0.01)
    assert last[f"{role}/loss"] < first[f"{role}/loss"]
    if algorithm == "DPO":
        assert first["actor/chosen_reward"] == pytest.approx(0, abs=1e-4)
    else:
        AutoModelForSequenceClassification.from_pretrained(finished.folder / "model")
        weights = load_file(finished.folder / "model" / "model.safetensors")
        assert {tensor.dtype for tensor in weights.values()} == {torch.bfloat16}
        assert "saved in bfloat16, as its source" in finished.output


def test_bench_real_measures_every_part_that_is_ours(
    demo: Path, cut_model: Path, scratch: Path
) -> None:
    folder = scratch / "bench-real"
    folder.mkdir()
    for rows in demo.glob("*.jsonl"):
        shutil.copy(rows, folder)
    (folder / "model").symlink_to(cut_model)
    printed = run_smallest(
        "real",
        "--without-trl",
        "--without-bare",
        f"--model={folder / 'model'}",
        starts={Heavy.RUN: 1, Heavy.ENGINE: 1},
    )
    answer = printed.json("real")
    (ours,) = answer["step"]["systems"].values()
    assert ours["step_seconds"] > 0 and 0 <= ours["scores"][0] <= 1
    assert answer["memory"]["planned_mebibytes"] > answer["memory"]["measured_mebibytes"] > 0
    assert set(answer["rank"]) >= {"transfer", "update"} and not answer["rank"]["failed"]
