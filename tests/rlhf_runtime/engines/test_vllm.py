"""Generation with the trainer's weights, in real worlds: on one rank, and cut in two."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ..world_of_processes import ON_GPU, failures, start_world
from . import vllm_ranks as ranks

pytestmark = pytest.mark.ray

WORLDS = {
    "one rank": (1, "cpu"),
    "one engine cut in two": (2, "cpu"),
    "one GPU": (1, "cuda"),
}
"""World size, which is the engine's, and device. Several engines, and those on some of the ranks,
are in test_transition."""
PARAMS = [pytest.param(name, marks=ON_GPU if "GPU" in name else ()) for name in WORLDS]


@pytest.fixture(scope="module", params=PARAMS)
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with every rank's results, after all scenarios ran."""
    size, device = WORLDS[request.param]
    # vLLM's shared memory is named after the folder, whichever session it is of.
    folder = tmp_path_factory.mktemp(f"vllm-{size}-{os.getpid()}-")
    module = "tests.rlhf_runtime.engines.vllm_ranks"
    return start_world(module, size, folder, device=device)


@pytest.mark.parametrize("scenario", list(ranks.scenarios(1, "cuda")))
def test_generation(world: Path, scenario: str) -> None:
    assert not failures(world, scenario)


ONLY_ON_CPU = [name for name in ranks.scenarios(1) if name not in ranks.scenarios(1, "cuda")]


@pytest.mark.parametrize("world", ["one rank"], indirect=True)
@pytest.mark.parametrize("scenario", ONLY_ON_CPU)
def test_kernels_of_cpus(world: Path, scenario: str) -> None:
    assert not failures(world, scenario)


FAMILIES = [name for name in ranks.scenarios(2) if name not in ranks.scenarios(1)]


@pytest.mark.parametrize("world", ["one engine cut in two"], indirect=True)
@pytest.mark.parametrize("scenario", FAMILIES)
def test_generation_with_more_families(world: Path, scenario: str) -> None:
    assert not failures(world, scenario)
