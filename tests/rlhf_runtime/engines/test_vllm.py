"""Generation with the trainer's weights, in real worlds: one rank, two engines, one cut in two."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ..world_of_processes import ON_GPU, failures, start_world
from . import vllm_ranks as ranks

pytestmark = pytest.mark.ray

WORLDS = {
    "one rank": (1, 1, "cpu"),
    "two engines": (2, 1, "cpu"),
    "one engine cut in two": (2, 2, "cpu"),
    "one GPU": (1, 1, "cuda"),
}
"""World size, ranks per engine and device."""
PARAMS = [pytest.param(name, marks=ON_GPU if "GPU" in name else ()) for name in WORLDS]


@pytest.fixture(scope="module", params=PARAMS)
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with every rank's results, after all scenarios ran."""
    return generate(tmp_path_factory, *WORLDS[request.param])


def generate(
    places: pytest.TempPathFactory, size: int, tensor_size: int, device: str, first_rank: int = 0
) -> Path:
    """Run the scenarios on the ranks of a world from the first one on."""
    folder = places.mktemp(f"vllm-{size}-{tensor_size}-{os.getpid()}-")
    module = "tests.rlhf_runtime.engines.vllm_ranks"
    return start_world(module, size, folder, str(tensor_size), str(first_rank), device=device)


@pytest.mark.parametrize("scenario", list(ranks.scenarios(1)))
def test_generation(world: Path, scenario: str) -> None:
    assert not failures(world, scenario)


FAMILIES = [name for name in ranks.scenarios(2) if name not in ranks.scenarios(1)]


@pytest.mark.parametrize("world", ["one engine cut in two"], indirect=True)
@pytest.mark.parametrize("scenario", FAMILIES)
def test_generation_with_more_families(world: Path, scenario: str) -> None:
    assert not failures(world, scenario)


@pytest.mark.parametrize(
    ("size", "tensor_size", "first_rank"), [(2, 1, 1), (4, 2, 2)], ids=["one of two", "two of four"]
)
def test_engines_on_a_part_of_the_ranks(
    tmp_path_factory: pytest.TempPathFactory, size: int, tensor_size: int, first_rank: int
) -> None:
    """The other ranks build nothing, and take part in nothing."""
    made = generate(tmp_path_factory, size, tensor_size, "cpu", first_rank)
    for scenario in ranks.ON_A_PART:
        assert not failures(made, scenario)
