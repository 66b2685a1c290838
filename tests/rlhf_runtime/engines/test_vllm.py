"""Generation with the trainer's weights, in real worlds: one rank, two engines, one cut in two."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ..world_of_processes import failures, start_world
from . import vllm_ranks as ranks

WORLDS = {"one rank": (1, 1), "two engines": (2, 1), "one engine cut in two": (2, 2)}
"""World size and ranks per engine."""


@pytest.fixture(scope="module", params=list(WORLDS))
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with every rank's results, after all scenarios ran."""
    size, tensor_size = WORLDS[request.param]
    folder: Path = tmp_path_factory.mktemp(f"vllm-{size}-{tensor_size}-{os.getpid()}-")
    module = "tests.rlhf_runtime.engines.vllm_ranks"
    return start_world(module, size, folder, str(tensor_size))


@pytest.mark.parametrize("scenario", list(ranks.scenarios(1)))
def test_generation(world: Path, scenario: str) -> None:
    assert not failures(world, scenario)
