"""Runs that several tests share: started once, when a test first needs them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import pytest

from .cli import BY_ITSELF, Finished, run, standing_by
from .layouts import LayoutRun, run_example
from .long_jobs import manifest_of


@pytest.fixture(scope="session")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of all runs."""
    folder: Path = tmp_path_factory.mktemp("runs")
    return folder


@pytest.fixture(scope="session", autouse=True)
def standby(scratch: Path) -> Iterator[None]:
    """Run the fork server of this folder's commands."""
    with standing_by(scratch / "standby.log"):
        yield


@pytest.fixture(scope="session")
def one_rank_run(scratch: Path) -> LayoutRun:
    """GRPO on one rank, without a fork server that stands by."""
    return run_example(scratch, "01", 1, **BY_ITSELF)


@pytest.fixture(scope="session")
def grpo(one_rank_run: LayoutRun) -> Finished:
    """The same run, as a finished command."""
    return one_rank_run.finished


@pytest.fixture(scope="session")
def grpo_on_two(scratch: Path) -> Finished:
    """GRPO on two ranks, with several updates per step and KL in the loss."""
    return _undisturbed(scratch, 2)


@pytest.fixture(scope="session")
def ppo(scratch: Path) -> Finished:
    """PPO on one rank, with several updates per step and KL in the reward."""
    return _undisturbed(scratch, 1)


def _undisturbed(scratch: Path, devices: int) -> Finished:
    name = f"undisturbed-{devices}"
    manifest = manifest_of(devices, scratch / f"{name}.yaml")
    finished = run(manifest, scratch / name, "--devices", devices)
    assert finished.code == 0, finished.output
    return finished


@pytest.fixture
def undisturbed(request: pytest.FixtureRequest) -> Callable[[int], Finished]:
    """The long job on a number of ranks, without an interruption."""
    fixtures = {1: "ppo", 2: "grpo_on_two"}
    return lambda devices: cast(Finished, request.getfixturevalue(fixtures[devices]))
