"""Conversations go on exactly after kills, with calls of tools under way."""

from __future__ import annotations

import json
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from rlhf_runtime.journal.folder import pass_folders

from .cli import USER_CODE, Finished, run
from .manifests import example, write_rows
from .records import records, without_pace

pytestmark = pytest.mark.ray

STEPS = 3
KILLS = ("kill:rank=1,phase=train,step=2", "kill:driver,phase=generate,step=3")
VICTIMS = ("process", "server", "host")


def rows(count: int) -> list[Mapping[str, Any]]:
    """Sums, with a conversation as the answer."""
    pairs = [((37 * n) % 60, (53 * n) % 40) for n in range(1, count + 1)]
    return [
        {"prompt": f"{a}+{b}=", "answer": f"add({a},{b})<eos>\n{a + b}\n{a + b}"} for a, b in pairs
    ]


def manifest_of(folder: Path, engine: str) -> Path:
    folder.mkdir()
    cut = {"parallelism": {"tensor": 2}}
    training = {"engine": engine, **(cut if engine == "Megatron" else {})}
    sections = {
        "data": {
            "train": {
                "path": str(write_rows(folder / "rows.jsonl", rows(400))),
                "builtin": None,
                "maxRows": None,
                "answerField": "answer",
            }
        },
        "models": {"actor": {"training": training}},
        "rewards": [{"name": "even", "function": None, "environment": {}}],
        "rollout": {
            "samplesPerPrompt": 4,
            "maxPromptTokens": 16,
            "maxResponseTokens": 48,
            "topP": 0.95,
            **cut,
            "environment": {
                "entrypoint": "conversing:Adder",
                "parameters": {"folder": str(folder)},
                "limits": {"turns": 3},
                "turnCredit": {"discount": 0.5},
                # Fewer than rows: later conversations begin when others have ended.
                "concurrency": 20,
            },
        },
        "schedule": {"steps": STEPS, "warmStart": {"maxSteps": 40, "promptsPerStep": 64}},
        "checkpoint": {"everySteps": 0, "keepLast": 1},
        "failurePolicy": {"backoffSeconds": 0},
        "code": {"local": str(USER_CODE)},
    }
    return example("01", folder / "job.yaml", sections)


def numbers(ended: Finished) -> dict[int, Mapping[str, float]]:
    return {one["step"]: without_pace(one["metrics"]) for one in records(ended.folder, "step")}


@pytest.mark.parametrize("engine", ["FSDP", pytest.param("Megatron", marks=pytest.mark.nightly)])
def test_killed_conversations_have_the_numbers_of_undisturbed_ones(
    scratch: Path, engine: str
) -> None:
    reference = run(
        manifest_of(scratch / f"calm-{engine}", engine),
        scratch / f"calm-run-{engine}",
        "--devices",
        2,
    )
    assert reference.code == 0, reference.output
    folder = scratch / f"deadly-{engine}"
    manifest = manifest_of(folder, engine)
    for victim in VICTIMS:
        (folder / victim).touch()
    words = [word for kill in KILLS for word in ("--inject", kill)]
    killed = run(manifest, scratch / f"deadly-run-{engine}", "--devices", 2, *words)
    assert killed.code == -signal.SIGKILL, killed.output
    assert not any((folder / victim).exists() for victim in VICTIMS)
    # The rank, and the host in the middle of a call.
    assert killed.output.count(", after WorkerLost: ") == 2, killed.output
    ended = run(manifest, killed.folder, "--devices", 2)
    assert ended.code == 0, ended.output
    assert numbers(ended) == numbers(reference)
    weights = [(one.folder / "model/model.safetensors").read_bytes() for one in (ended, reference)]
    assert weights[0] == weights[1]
    steps = numbers(reference).values()
    assert max(one["actor/log_prob_difference_max"] for one in steps) < 1e-4
    assert min(one["environment/turns"] for one in steps) > 1.1, "tools are called"
    assert not any(one["environment/failed"] for one in steps)
    assert {one.step for one in pass_folders(ended.folder / "journal")} == {STEPS}
    samples = (ended.folder / "samples/step-000001.jsonl").read_text().splitlines()
    assert any("<eos>\n" in json.loads(sample)["response"] for sample in samples)
