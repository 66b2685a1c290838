"""Manifests of small runs: sorting digits, with a reward that a random model can get."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from ..merging import merge
from .cli import EXAMPLES, USER_CODE

# The examples' exact-match reward is 0 for an untrained model.
SMALL = {
    "schedule": {
        "steps": 2,
        "promptsPerStep": 8,
        "evaluateEverySteps": 0,
        "warmStart": {"maxSteps": 2, "stopAtExactMatch": None, "promptsPerStep": 16},
    },
    "data": {"train": {"maxRows": 1024}},
    "rewards": [{"name": "digits", "function": {"entrypoint": "verifiers:digits"}}],
    "code": {"local": str(USER_CODE)},
}
"""Changes that make an example small."""


def example(name: str, file: Path, *changes: Mapping[str, Any]) -> Path:
    """Write a small copy of an example with further changes."""
    (source,) = EXAMPLES.glob(f"{name}-*.yaml")
    manifest = yaml.safe_load(source.read_text())
    for change in (SMALL, *changes):
        merge(manifest["spec"], change)
    file.write_text(yaml.safe_dump(manifest, sort_keys=False))
    return file


def without_rewards(file: Path, algorithm: str, role: str, **sections: Any) -> Path:
    """Write a job that trains one role, without actor and rewards."""
    spec = {
        "algorithm": {"type": "Custom", "custom": {"entrypoint": f"algorithms:{algorithm}"}},
        "models": {
            role: {"source": {"builtin": "TinyLlama"}, "training": {"learningRate": 1e-3}},
        },
        "rollout": {"maxPromptTokens": 24, "maxResponseTokens": 8},
        "code": {"local": str(USER_CODE)},
        **sections,
    }
    head = {"apiVersion": "rlhf-operator.dev/v1alpha1", "kind": "RLHFJob"}
    manifest = {**head, "metadata": {"name": algorithm.lower()}, "spec": spec}
    file.write_text(yaml.safe_dump(manifest, sort_keys=False))
    return file


def write_rows(file: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def digit_rows(count: int) -> list[Mapping[str, Any]]:
    """Rows in the form of the builtin task."""
    numbers = [f"{(7919 * (i + 1)) % 1_000_000:06d}" for i in range(count)]
    return [{"prompt": f"{n}=", "answer": "".join(sorted(n))} for n in numbers]


def digit_pairs(count: int) -> list[Mapping[str, Any]]:
    """Pairs: sorted digits are chosen, the same backwards rejected."""
    rows = [row for row in digit_rows(2 * count) if len(set(row["answer"])) > 1][:count]
    return [
        {"prompt": row["prompt"], "chosen": row["answer"], "rejected": row["answer"][::-1]}
        for row in rows
    ]
