"""Runs scenarios in a real world of gloo ranks, one process each, and brings back what failed.

A module with scenarios is started once per rank as `python -m MODULE RANK WORLD_SIZE FOLDER` and
calls `run_scenarios`; a test starts it with `start_world` and reads `failures`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore

from rlhf_runtime.engines.world import World

ROOT = Path(__file__).parents[3]
LIMIT_SECONDS = 400
"""About 40 s on two idle cores; a busy machine takes several times as long."""
COLLECTIVE_SECONDS = 120.0

Scenario = Callable[[World, Path], None]
"""Gets the world and an empty folder, the same on all ranks."""

ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "OMP_WAIT_POLICY": "PASSIVE",
    "HF_HUB_OFFLINE": "1",
    "GLOO_SOCKET_IFNAME": "lo",
    "TOKENIZERS_PARALLELISM": "false",
}


def start_world(module: str, world_size: int, folder: Path, *arguments: str) -> Path:
    """Run a module's scenarios on so many ranks; the folder then holds every rank's results."""
    processes = []
    for rank in range(world_size):
        with (folder / f"rank{rank}.log").open("w") as log:
            command = [sys.executable, "-m", module, str(rank), str(world_size), str(folder)]
            processes.append(
                subprocess.Popen(
                    [*command, *arguments],
                    cwd=ROOT,
                    env=os.environ | ENVIRONMENT,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                )
            )
    try:
        codes = [process.wait(timeout=LIMIT_SECONDS) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    logs = "\n".join(log.read_text()[-4000:] for log in sorted(folder.glob("rank*.log")))
    assert codes == [0] * world_size, logs
    return folder


def worlds_of_one_and_two(module: str) -> Any:
    """A fixture: a module's scenarios in either world; the folder with every rank's results."""

    @pytest.fixture(scope="module", params=[1, 2], ids=["one-rank", "two-ranks"])
    def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
        return start_world(module, request.param, tmp_path_factory.mktemp("world"))

    return world


def run_scenarios(
    rank: int,
    world_size: int,
    folder: Path,
    scenarios: Mapping[str, Scenario],
    close: Callable[[], None] = lambda: None,
) -> None:
    """Run every scenario on this rank, write what failed, close what they share."""
    torch.set_num_threads(1)
    store = FileStore(str(folder / "store"), world_size)
    world = World.join(rank, world_size, store, torch.device("cpu"), COLLECTIVE_SECONDS)
    failures: dict[str, str | None] = {}
    for number, (name, scenario) in enumerate(scenarios.items()):
        place = folder / f"scenario{number}"
        place.mkdir(exist_ok=True)
        try:
            scenario(world, place)
        except Exception:  # reported to the test, which fails with it
            failures[name] = traceback.format_exc()
        else:
            failures[name] = None
        dist.barrier()
    (folder / f"rank{rank}.json").write_text(json.dumps(failures))
    close()
    world.close()


def failures(folder: Path, scenario: str) -> dict[str, str]:
    """What failed in a scenario, by rank."""
    found = {}
    for results in sorted(folder.glob("rank*.json")):
        failure = json.loads(results.read_text())[scenario]
        if failure is not None:
            found[results.stem] = failure
    return found
