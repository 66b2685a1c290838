"""Runs that several tests look at: made once, when a test first asks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import pytest

from .cli import BY_ITSELF, Finished, run, standing_by
from .layouts import Made, run_example
from .long_jobs import manifest_of


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where runs are."""
    folder: Path = tmp_path_factory.mktemp("runs")
    return folder


@pytest.fixture(scope="session", autouse=True)
def standby(place: Path) -> Iterator[None]:
    """The fork server of this folder's commands."""
    with standing_by(place / "standby.log"):
        yield


@pytest.fixture(scope="session")
def made_on_one_rank(place: Path) -> Made:
    """GRPO on one rank, without a fork server that stands by."""
    return run_example(place, "01", 1, **BY_ITSELF)


@pytest.fixture(scope="session")
def grpo(made_on_one_rank: Made) -> Finished:
    """The same run as a command that has ended."""
    return made_on_one_rank.finished


@pytest.fixture(scope="session")
def grpo_on_two(place: Path) -> Finished:
    """GRPO on two ranks, with several updates per step and KL in the loss."""
    return _undisturbed(place, 2)


@pytest.fixture(scope="session")
def ppo(place: Path) -> Finished:
    """PPO on one rank, with several updates per step and KL in the reward."""
    return _undisturbed(place, 1)


def _undisturbed(place: Path, devices: int) -> Finished:
    name = f"undisturbed-{devices}"
    manifest = manifest_of(devices, place / f"{name}.yaml")
    finished = run(manifest, place / name, "--devices", devices)
    assert finished.code == 0, finished.output
    return finished


@pytest.fixture
def undisturbed(request: pytest.FixtureRequest) -> Callable[[int], Finished]:
    """The long job of a number of ranks, run to its end without an interruption."""
    fixtures = {1: "ppo", 2: "grpo_on_two"}
    return lambda devices: cast(Finished, request.getfixturevalue(fixtures[devices]))
