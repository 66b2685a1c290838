"""Runs that several tests look at; each is made once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from .cli import Finished, run
from .manifests import example

AT_ONCE = 2
"""Runs that are made side by side."""
SEVERAL_UPDATES = {
    "algorithm": {"grpo": {"klCoefficient": 0.05, "epochsPerBatch": 2}},
    "schedule": {"miniBatchPrompts": 3},
}
"""KL in the loss, three mini-batches (the last one smaller), two epochs."""
KL_IN_REWARD = {
    "algorithm": {"ppo": {"klCoefficient": 0.05, "valueClipRange": 0.2}},
    "schedule": {"promptsPerStep": 32, "miniBatchPrompts": 16},
}

ON_ONE_AND_TWO: dict[str, tuple[str, dict[str, Any], int]] = {
    "grpo": ("01", {}, 1),
    "grpo-two": ("01", SEVERAL_UPDATES, 2),
    "ppo": ("02", KL_IN_REWARD, 1),
    "ppo-two": ("02", {"schedule": {"promptsPerStep": 32}}, 2),
}
"""Example, changes and ranks of each run."""


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where runs are."""
    folder: Path = tmp_path_factory.mktemp("runs")
    return folder


@pytest.fixture(scope="session")
def both_sizes(place: Path) -> dict[str, Finished]:
    """Each of the runs, some at once: one rank leaves a core idle."""

    def make(name: str) -> Finished:
        number, changes, devices = ON_ONE_AND_TWO[name]
        manifest = example(number, place / f"{name}.yaml", changes)
        return run(manifest, place / name, "--devices", devices)

    with ThreadPoolExecutor(AT_ONCE) as threads:
        return dict(zip(ON_ONE_AND_TWO, threads.map(make, ON_ONE_AND_TWO), strict=True))


@pytest.fixture(scope="session")
def grpo(both_sizes: dict[str, Finished]) -> Finished:
    """GRPO on one rank."""
    return both_sizes["grpo"]


@pytest.fixture(scope="session")
def grpo_on_two(both_sizes: dict[str, Finished]) -> Finished:
    """GRPO on two ranks, with several updates per step and KL in the loss."""
    return both_sizes["grpo-two"]


@pytest.fixture(scope="session")
def ppo(both_sizes: dict[str, Finished]) -> Finished:
    """PPO on one rank, with several updates per step and KL in the reward."""
    return both_sizes["ppo"]


@pytest.fixture(scope="session")
def ppo_on_two(both_sizes: dict[str, Finished]) -> Finished:
    """PPO on two ranks."""
    return both_sizes["ppo-two"]
