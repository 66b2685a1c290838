"""Manifests of the two jobs of seven steps that test_resume interrupts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .manifests import digit_rows, example, write_rows

STEPS = 7
OFTEN = {
    "schedule": {"steps": STEPS, "evaluateEverySteps": 3},
    "checkpoint": {"everySteps": 1, "keepLast": 2},
    "failurePolicy": {"backoffSeconds": 0},
    "telemetry": {"samplesEverySteps": 2},
}
GRPO = {
    "algorithm": {"grpo": {"klCoefficient": 0.05, "epochsPerBatch": 2}},
    "schedule": {"miniBatchPrompts": 3},
    "rollout": {
        "stop": ["99", "0"],
        "onStop": {"TokenLimit": "LeaveOut", "EndToken": "Mask"},
        "topP": 0.9,
    },
}
"""KL in the loss, three mini-batches (the last one smaller), two epochs, all stop reasons,
truncated sampling."""
PPO = {
    "algorithm": {"ppo": {"klCoefficient": 0.05, "valueClipRange": 0.2}},
    "schedule": {"promptsPerStep": 16, "miniBatchPrompts": 8},
}
"""KL in the reward, two mini-batches."""


def manifest_of(devices: int, file: Path, *changes: Mapping[str, Any]) -> Path:
    """Write GRPO with a reference for two ranks, or PPO with a critic for one."""
    if devices == 1:
        held_out = {"evaluation": _sampled_sources(file.parent)}
        return example("02", file, OFTEN, PPO, {"data": held_out}, *changes)
    # Two steps are an epoch of both sources, so that a resumed run crosses epochs.
    parts = {"many": digit_rows(16)[:12], "few": digit_rows(16)[12:]}
    sources = [
        {"name": name, "path": str(write_rows(file.parent / f"{name}.jsonl", part)), "weight": w}
        for (name, part), w in zip(parts.items(), (3, 1), strict=True)
    ]
    evaluation = write_rows(file.parent / "held-out.jsonl", digit_rows(20)[16:])
    rows = {
        "train": {"sources": sources, "builtin": None, "maxRows": None, "answerField": "answer"},
        "evaluation": {"path": str(evaluation), "answerField": "answer"},
    }
    return example("01", file, OFTEN, GRPO, {"data": rows}, *changes)


def _sampled_sources(folder: Path) -> Mapping[str, Any]:
    """Two sets of held-out prompts of different size, with several sampled answers."""
    rows = digit_rows(40)
    sets = {"first": rows[:24], "second": rows[24:]}
    sources = [
        {"name": name, "path": str(write_rows(folder / f"{name}.jsonl", part))}
        for name, part in sets.items()
    ]
    sampling = {
        "samplesPerPrompt": 2,
        "temperature": 0.8,
        "topP": 0.98,
        "passAtK": [1, 2],
        "passScore": 0.9,
    }
    return {"sources": sources, "answerField": "answer", **sampling}
