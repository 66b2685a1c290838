"""Runs scenarios in a real world of gloo ranks, one process each, and brings back what failed.

A module with scenarios is run once per rank as `python -m MODULE RANK WORLD_SIZE FOLDER` would run
it, in a process that is forked from one that has imported the libraries. It calls `run_scenarios`;
a test starts it with `start_world` and reads `failures`.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import runpy
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore

from rlhf_runtime.engines.world import World

LIMIT_SECONDS = 400
"""About 40 s on two idle cores; a busy machine takes several times as long."""
COLLECTIVE_SECONDS = 120.0

Scenario = Callable[[World, Path], None]
"""Gets the world and an empty folder, the same on all ranks."""

SHARED_MEMORY = Path("/dev/shm")
LIBRARIES = f"{__package__}.libraries"
FORKING = multiprocessing.get_context("forkserver")
FORKING.set_forkserver_preload([LIBRARIES])


def start_world(module: str, world_size: int, folder: Path, *arguments: str) -> Path:
    """Run a module's scenarios on so many ranks; the folder then holds every rank's results."""
    ranks = [
        FORKING.Process(
            target=_run_rank,
            args=([module, str(rank), str(world_size), str(folder), *arguments],),
        )
        for rank in range(world_size)
    ]
    deadline = time.monotonic() + LIMIT_SECONDS
    try:
        for rank in ranks:
            rank.start()
        for rank in ranks:
            rank.join(max(0.0, deadline - time.monotonic()))
    finally:
        for rank in ranks:
            if rank.pid is not None:
                rank.kill()
                rank.join()
        for segment in SHARED_MEMORY.glob(f"*-{folder.name}-*"):
            segment.unlink()  # vLLM does that at an end that forked processes do not come to
    logs = "\n".join(log.read_text()[-4000:] for log in sorted(folder.glob("rank*.log")))
    assert [rank.exitcode for rank in ranks] == [0] * world_size, logs
    return folder


def _run_rank(words: list[str]) -> None:
    """Be the process of a rank; a module's name and what it is called with."""
    import_module(LIBRARIES)  # unless that was done before the fork
    module, rank, _, folder, *_ = sys.argv = words
    with (Path(folder) / f"rank{rank}.log").open("w") as log:
        for standard_stream in (1, 2):
            os.dup2(log.fileno(), standard_stream)
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def worlds_of_one_and_two(module: str) -> Any:
    """A fixture: a module's scenarios in either world; the folder with every rank's results."""

    @pytest.fixture(scope="module", params=[1, 2], ids=["one-rank", "two-ranks"])
    def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
        return start_world(module, request.param, tmp_path_factory.mktemp("world"))

    return world


class Worlds:
    """Worlds of several sizes, each started when a test first asks for it, and once only: where it
    fails, too, as every test that asks again would wait as long."""

    def __init__(self, module: str, factory: pytest.TempPathFactory) -> None:
        self._module = module
        self._factory = factory
        self._ended: dict[int, Path | AssertionError] = {}

    def of(self, size: int) -> Path:
        """The folder with every rank's results of a world of so many."""
        if size not in self._ended:
            folder = self._factory.mktemp(f"world-{size}-")
            try:
                self._ended[size] = start_world(self._module, size, folder)
            except AssertionError as error:
                self._ended[size] = error
        ended = self._ended[size]
        if isinstance(ended, AssertionError):
            raise ended
        return ended


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
            traceback.print_exc()  # others may wait for this rank in vain, and nothing be written
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
