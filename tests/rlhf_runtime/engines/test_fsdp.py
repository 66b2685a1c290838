"""The training engine against Hugging Face and plain torch, in real worlds of one and two ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from ..world_of_processes import failures, worlds_of_one_and_two
from . import fsdp_ranks as ranks

pytestmark = pytest.mark.ray

world = worlds_of_one_and_two("tests.rlhf_runtime.engines.fsdp_ranks")


@pytest.mark.parametrize("scenario", list(ranks.scenarios(1)))
def test_training_engine(world: Path, scenario: str) -> None:
    assert not failures(world, scenario)
