"""Runs scenarios in a real world of ranks, one process each, and brings back what failed.

Ranks are on CPUs, or, with the same scenarios, each is on a GPU of its own, where there are enough.

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
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from importlib import import_module
from multiprocessing.connection import wait
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore

from rlhf_runtime.engines.vllm.engine import VllmEngine
from rlhf_runtime.engines.world import World

from ..heavy_starts import Heavy, count_start

SCENARIO_SECONDS = 300
"""After so long without another scenario a world is stuck. One takes a second or two on two idle
cores; how many there are, and how busy the machine is, is no reason to end them."""
COLLECTIVE_SECONDS = 120.0
ENGINES = "rank*.engines"
"""Files with a byte for every engine that a rank has started."""
SCENARIO = "scenario"
"""How the names of their folders begin."""

ONE_AND_TWO = ((1, "cpu"), (2, "cpu"), (1, "cuda"))
"""Worlds of most scenarios: numbers of ranks and devices."""
DEVICE = "RLHF_TEST_DEVICE"
"""Names what a rank computes on."""
VISIBLE = "CUDA_VISIBLE_DEVICES"


def on_gpus(number: int) -> tuple[pytest.MarkDecorator, ...]:
    """Marks of a test whose world has so many ranks on GPUs, each on its own."""
    lacks = torch.cuda.device_count() < number
    return pytest.mark.gpu, pytest.mark.skipif(lacks, reason=f"fewer than {number} CUDA devices")


ON_GPU = on_gpus(1)

Scenario = Callable[[World, Path], None]
"""Gets the world and an empty folder, the same on all ranks."""

SHARED_MEMORY = Path("/dev/shm")
LIBRARIES = f"{__package__}.libraries"


@cache
def _forking() -> ForkServerContext:
    """The context whose fork server imports the libraries of ranks, once in a process of tests."""
    count_start(Heavy.FORK_SERVER, shared=True)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([LIBRARIES])
    return context


def start_world(module: str, world_size: int, folder: Path, *, device: str = "cpu") -> Path:
    """Run a module's scenarios on so many ranks; the folder then holds every rank's results."""
    count_start(Heavy.WORLD)
    ranks = [
        _forking().Process(
            target=_run_rank,
            args=([module, str(rank), str(world_size), str(folder)], device),
        )
        for rank in range(world_size)
    ]
    try:
        for rank in ranks:
            rank.start()
        _wait_for(ranks, folder)
    finally:
        for rank in ranks:
            if rank.pid is not None:
                rank.kill()
                rank.join()
        for segment in SHARED_MEMORY.glob(f"*-{folder.name}-*"):
            segment.unlink()  # vLLM does that at an end that forked processes do not come to
    logs = "\n".join(log.read_text()[-4000:] for log in sorted(folder.glob("rank*.log")))
    count_start(Heavy.ENGINE, sum(len(file.read_bytes()) for file in folder.glob(ENGINES)))
    assert [rank.exitcode for rank in ranks] == [0] * world_size, logs
    return folder


def _wait_for(ranks: Sequence[BaseProcess], folder: Path) -> None:
    """Until all have ended, or are stuck."""
    while running := [rank.sentinel for rank in ranks if rank.is_alive()]:
        begun = len(list(folder.glob(f"{SCENARIO}*")))
        if not wait(running, SCENARIO_SECONDS) and len(list(folder.glob(f"{SCENARIO}*"))) == begun:
            return


def _run_rank(words: list[str], device: str) -> None:
    """Be the process of a rank; a module's name and what it is called with."""
    os.environ[DEVICE] = device
    if device == "cuda":  # it sees no other, as a worker does
        visible = os.environ.get(VISIBLE)
        gpus = visible.split(",") if visible else [str(n) for n in range(int(words[2]))]
        os.environ[VISIBLE] = gpus[int(words[1])]
    import_module(LIBRARIES)  # unless that was done before the fork
    module, rank, _, folder, *_ = sys.argv = words
    with (Path(folder) / f"rank{rank}.log").open("w") as log:
        for standard_stream in (1, 2):
            os.dup2(log.fileno(), standard_stream)
    runpy.run_module(module, run_name="__main__", alter_sys=True)


class Worlds:
    """Worlds of several sizes, each started when a test first asks for it, and once only: where it
    fails, too, as every test that asks again would wait as long."""

    def __init__(self, module: str, factory: pytest.TempPathFactory) -> None:
        self._module = module
        self._factory = factory
        self._ended: dict[tuple[int, str], Path | AssertionError] = {}

    def of(self, size: int, device: str = "cpu") -> Path:
        """The folder with every rank's results of a world of so many."""
        key = size, device
        if key not in self._ended:
            # vLLM's shared memory is named after it, whichever session it is of
            folder = self._factory.mktemp(f"world-{size}-{os.getpid()}-")
            try:
                self._ended[key] = start_world(self._module, size, folder, device=device)
            except AssertionError as error:
                self._ended[key] = error
        ended = self._ended[key]
        if isinstance(ended, AssertionError):
            raise ended
        return ended


def worlds_of(module: str) -> Any:
    """The fixture `worlds` of a file of tests: the worlds of a module's scenarios."""

    @pytest.fixture(scope="module")
    def worlds(tmp_path_factory: pytest.TempPathFactory) -> Worlds:
        return Worlds(module, tmp_path_factory)

    return worlds


def in_worlds(
    worlds: Iterable[tuple[int, str]], names: Callable[[int], Iterable[str]]
) -> pytest.MarkDecorator:
    """Parametrize a test by size, device and scenario.

    Args:
        worlds: number of ranks, and `cpu` or `cuda`.
        names: the scenarios of so many ranks.
    """
    return pytest.mark.parametrize(
        ("size", "device", "scenario"),
        [
            pytest.param(size, device, name, marks=on_gpus(size) if device == "cuda" else ())
            for size, device in worlds
            for name in names(size)
        ],
    )


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
    world = World.join(
        rank, world_size, store, torch.device(os.environ[DEVICE]), COLLECTIVE_SECONDS
    )
    _count_engines(folder / f"rank{rank}.engines")
    failures: dict[str, str | None] = {}
    for number, (name, scenario) in enumerate(scenarios.items()):
        place = folder / f"{SCENARIO}{number}"
        place.mkdir(exist_ok=True)
        begin = time.perf_counter()
        try:
            scenario(world, place)
        except Exception:  # reported to the test, which fails with it
            failures[name] = traceback.format_exc()
            traceback.print_exc()  # others may wait for this rank in vain, and nothing be written
        else:
            failures[name] = None
        dist.barrier()
        print(f"{name}: {time.perf_counter() - begin:.2f} s", flush=True)
    (folder / f"rank{rank}.json").write_text(json.dumps(failures))
    close()
    world.close()


def _count_engines(file: Path) -> None:
    """Write a byte into a file whenever this process starts an engine."""
    build = VllmEngine.__init__

    def counted(engine: VllmEngine, *arguments: Any, **options: Any) -> None:
        with file.open("ab") as counter:
            counter.write(b".")
        build(engine, *arguments, **options)

    setattr(VllmEngine, "__init__", counted)  # noqa: B010


def failures(folder: Path, scenario: str) -> dict[str, str]:
    """What failed in a scenario, by rank."""
    found = {}
    for results in sorted(folder.glob("rank*.json")):
        failure = json.loads(results.read_text())[scenario]
        if failure is not None:
            found[results.stem] = failure
    return found
