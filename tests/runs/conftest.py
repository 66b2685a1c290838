"""Runs that several tests look at; each is made once."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from .cli import BY_ITSELF, Finished, run, standing_by
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


@pytest.fixture(scope="session", autouse=True)
def standby(place: Path) -> Iterator[None]:
    """What the commands of this folder fork their workers from."""
    with standing_by(place / "standby.log"):
        yield


@pytest.fixture(scope="session")
def made(place: Path) -> Callable[[str], Finished]:
    """Makes each of the runs when it is first asked for."""

    @functools.cache
    def make(name: str) -> Finished:
        number, changes, devices = ON_ONE_AND_TWO[name]
        manifest = example(number, place / f"{name}.yaml", changes)
        environment = BY_ITSELF if name == "grpo" else {}
        return run(manifest, place / name, "--devices", devices, **environment)

    return make


@pytest.fixture(scope="session")
def grpo(made: Callable[[str], Finished]) -> Finished:
    """GRPO on one rank."""
    return made("grpo")


@pytest.fixture(scope="session")
def grpo_on_two(made: Callable[[str], Finished]) -> Finished:
    """GRPO on two ranks, with several updates per step and KL in the loss."""
    return made("grpo-two")


@pytest.fixture(scope="session")
def ppo(made: Callable[[str], Finished]) -> Finished:
    """PPO on one rank, with several updates per step and KL in the reward."""
    return made("ppo")


@pytest.fixture(scope="session")
def ppo_on_two(made: Callable[[str], Finished]) -> Finished:
    """PPO on two ranks."""
    return made("ppo-two")
