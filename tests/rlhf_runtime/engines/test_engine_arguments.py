"""What vLLM is told follows from the plan, on devices that are not here, too."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from rlhf_runtime.engines.generation import EngineSettings
from rlhf_runtime.engines.vllm.arguments import engine_arguments

GIB = 2**30
SETTINGS = EngineSettings(
    folder=Path("model"),
    dtype="bfloat16",
    groups=((0, 2), (1, 3)),
    kv_cache_bytes=10 * GIB,
    memory_bytes=20 * GIB,
    max_sequence_tokens=1000 + 500,
    max_concurrent_sequences=64,
    block_tokens=16,
    stop_token_ids=(7,),
    world="test",
)


def test_on_a_gpu_an_engine_asks_for_its_share_and_no_more() -> None:
    told = engine_arguments(SETTINGS, 80 * GIB)
    assert told["gpu_memory_utilization"] == 0.25
    assert told["kv_cache_memory_bytes"] == 10 * GIB
    assert told["enable_sleep_mode"] and not told["enforce_eager"]
    assert told["disable_custom_all_reduce"], "a rank sees no GPU but its own"


@pytest.mark.parametrize(("planned", "share"), [(0, 0.01), (200 * GIB, 1.0)])
def test_a_share_is_one(planned: int, share: float) -> None:
    told = engine_arguments(replace(SETTINGS, memory_bytes=planned), 80 * GIB)
    assert told["gpu_memory_utilization"] == share


def test_on_a_cpu_nothing_is_captured_and_nothing_sleeps() -> None:
    told = engine_arguments(SETTINGS, None)
    assert told["enforce_eager"] and not told["enable_sleep_mode"]
    assert "gpu_memory_utilization" not in told


def test_a_sequence_that_is_longer_than_a_batch_fits() -> None:
    told = engine_arguments(replace(SETTINGS, max_sequence_tokens=9500), None)
    assert told["max_model_len"] == told["max_num_batched_tokens"] == 9500
