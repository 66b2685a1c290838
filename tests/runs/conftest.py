"""Runs that several tests look at; each is made once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from .cli import Finished, run
from .manifests import example

SEVERAL_UPDATES = {
    "algorithm": {"grpo": {"klCoefficient": 0.05, "epochsPerBatch": 2}},
    "schedule": {"miniBatchPrompts": 3},
}
"""KL in the loss, three mini-batches (the last one smaller), two epochs."""
KL_IN_REWARD = {
    "algorithm": {"ppo": {"klCoefficient": 0.05, "valueClipRange": 0.2}},
    "schedule": {"promptsPerStep": 32, "miniBatchPrompts": 16},
}

Make = Callable[..., Finished]


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where runs are."""
    folder: Path = tmp_path_factory.mktemp("runs")
    return folder


@pytest.fixture(scope="session")
def grpo(place: Path) -> Finished:
    """GRPO on one rank."""
    return run(example("01", place / "grpo.yaml"), place / "grpo", "--devices", 1)


@pytest.fixture(scope="session")
def grpo_on_two(place: Path) -> Finished:
    """GRPO on two ranks, with several updates per step and KL in the loss."""
    manifest = example("01", place / "grpo-two.yaml", SEVERAL_UPDATES)
    return run(manifest, place / "grpo-two", "--devices", 2)


@pytest.fixture(scope="session")
def ppo(place: Path) -> Finished:
    """PPO on one rank, with several updates per step and KL in the reward."""
    manifest = example("02", place / "ppo.yaml", KL_IN_REWARD)
    return run(manifest, place / "ppo", "--devices", 1)


@pytest.fixture(scope="session")
def ppo_on_two(place: Path) -> Finished:
    """PPO on two ranks."""
    manifest = example("02", place / "ppo-two.yaml", {"schedule": {"promptsPerStep": 32}})
    return run(manifest, place / "ppo-two", "--devices", 2)
