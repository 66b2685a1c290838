"""What plans know of Megatron's stages, against the stages themselves."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rlhf_planner.memory.megatron import vocabulary_rows
from rlhf_runtime.engines.megatron.architecture import Architecture
from rlhf_runtime.engines.megatron.family import FAMILIES
from rlhf_sizing.config import MEGATRON_FAMILIES, shape_from_config

from ..world_of_processes import failures, start_world
from .megatron_models import CONFIGS, PLAIN


def test_plans_know_the_families_that_are_mapped() -> None:
    assert set(FAMILIES) == MEGATRON_FAMILIES


@pytest.mark.parametrize("tensor", [1, 2, 3, 8])
def test_plans_pad_the_vocabulary_alike(tensor: int) -> None:
    config = CONFIGS[PLAIN]()
    shape = shape_from_config(config.to_dict(), "the test", "")
    padded = Architecture.from_config(config).padded_vocabulary(tensor)
    assert vocabulary_rows(shape, tensor) * tensor == padded


@pytest.mark.ray
def test_stages_hold_and_keep_what_is_planned(tmp_path: Path) -> None:
    folder = start_world("tests.rlhf_runtime.engines.megatron_plan_ranks", 2, tmp_path)
    ran = list(json.loads((folder / "rank0.json").read_text()))
    assert len(ran) == 2 * len(CONFIGS) + 12
    assert {name: found for name in ran if (found := failures(folder, name))} == {}
