"""Offloaded roles give exactly the numbers of roles that are never offloaded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from rlhf_runtime.telemetry.run_folder import RunFolder

from .cli import Finished, run
from .manifests import example
from .records import records, without_pace

pytestmark = pytest.mark.ray

ALWAYS = {"actor": "Always", "critic": "Derived", "reference": "Always"}
NEVER = dict.fromkeys(ALWAYS, "Never")
PPO = {
    "algorithm": {"ppo": {"klCoefficient": 0.05}},
    "models": {"critic": {"training": {"engine": "Megatron", "precision": "bfloat16"}}},
    "schedule": {"steps": 4, "promptsPerStep": 16, "miniBatchPrompts": 8},
    "checkpoint": {"everySteps": 1},
    "failurePolicy": {"backoffSeconds": 0},
}
"""A trainer of each kind, and a role that is only read and takes the policy's weights at first."""
KILL = ("--inject", "kill:rank=0,phase=train,step=2")


def ppo(scratch: Path, name: str, offload: Mapping[str, str], *words: str) -> Finished:
    """Run with roles offloaded as `offload` says."""
    models: dict[str, Any] = {role: {"training": {"offload": offload[role]}} for role in offload}
    models["reference"]["source"] = {"sameAs": "actor"}
    manifest = example("02", scratch / f"{name}.yaml", PPO, {"models": models})
    ended = run(manifest, scratch / name, "--devices", 1, *words)
    assert ended.code == 0, ended.output
    return ended


def numbers(folder: Path) -> dict[tuple[str, int], dict[str, float]]:
    """Metrics by kind and step; of repeated steps the last ones."""
    return {
        (kind, record["step"]): without_pace(record["metrics"])
        for kind in ("warm_start", "evaluation", "step")
        for record in records(folder, kind)
    }


def moves(folder: Path, step: int) -> Sequence[str]:
    """Calls of models in a step, in the order of their starts."""
    spans = sorted(RunFolder(folder).read_spans([step])[step], key=lambda span: span.start)
    return [f"{span.role}.{span.call}" for span in spans if span.role in ALWAYS]


def test_offloaded_roles_give_the_same_numbers_even_after_a_kill(scratch: Path) -> None:
    resident = ppo(scratch, "resident", NEVER)
    offloaded = ppo(scratch, "offloaded", ALWAYS, *KILL)
    assert offloaded.output.count(", after WorkerLost: ") == 1, offloaded.output
    assert numbers(offloaded.folder) == numbers(resident.folder)
    weights = [
        (finished.folder / "model" / "model.safetensors").read_bytes()
        for finished in (resident, offloaded)
    ]
    assert weights[0] == weights[1]
    assert not any("load" in move for move in moves(resident.folder, 4))
    assert moves(offloaded.folder, 4) == [
        *("actor.load", "actor.reshard", "actor.offload", "actor.generate"),
        *("actor.load", "actor.log_probs", "actor.offload"),
        *("reference.load", "reference.log_probs", "reference.offload"),
        *("critic.load", "critic.values", "critic.train", "critic.offload"),
        *("actor.load", "actor.train", "actor.offload"),
    ]
