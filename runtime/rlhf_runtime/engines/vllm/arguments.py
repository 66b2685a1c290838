"""What an engine is asked for, and what vLLM is told for it: from the plan, nothing left to vLLM's
own guesses about a device that it shares with the trainer. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlhf_sizing.limits import BATCHED_TOKENS

SMALLEST_SHARE = 0.01
"""Of a device's memory; vLLM takes no share of zero."""


Groups = tuple[tuple[int, ...], ...]
"""Ranks that are an engine each, ascending: a rank's place in its group is its part of the
model."""


@dataclass(frozen=True)
class EngineSettings:
    """What an engine is built with; lengths in tokens."""

    folder: Path
    dtype: str
    groups: Groups
    """The ranks of each engine of the role, as torch's world numbers them."""
    kv_cache_bytes: int
    memory_bytes: int
    """What the plan gives the engine on each device: weights, cache and what it works on."""
    max_prompt_tokens: int
    max_response_tokens: int
    max_concurrent_sequences: int
    block_tokens: int
    """Tokens of a block of the key-value cache."""
    stop_token_ids: tuple[int, ...]
    world: str
    """A name of the ranks that generate and of this incarnation, like no other's on the node."""
    share_prompts: bool = False
    """Whether keys and values of equal prompts are computed once."""


def engine_arguments(settings: EngineSettings, device_bytes: int | None) -> dict[str, Any]:
    """The arguments of vLLM's `EngineArgs`.

    Args:
        settings: of the engine.
        device_bytes: memory of the GPU that it is on, all of it; None on a CPU.
    """
    longest = settings.max_prompt_tokens + settings.max_response_tokens
    arguments: dict[str, Any] = {
        "model": str(settings.folder),
        "skip_tokenizer_init": True,
        "load_format": "dummy",  # the trainer's weights come before the first request
        "dtype": settings.dtype,
        "enforce_eager": device_bytes is None,
        "block_size": settings.block_tokens,
        "tensor_parallel_size": len(settings.groups[0]),
        "distributed_executor_backend": "external_launcher",
        "kv_cache_memory_bytes": settings.kv_cache_bytes,
        "max_model_len": longest,
        "max_num_seqs": settings.max_concurrent_sequences,
        "max_num_batched_tokens": max(BATCHED_TOKENS, longest),
        "enable_chunked_prefill": device_bytes is not None,  # a CPU's generators cannot go back
        "enable_prefix_caching": settings.share_prompts,
        "enable_sleep_mode": device_bytes is not None,
        "disable_log_stats": True,
        "logprobs_mode": "processed_logprobs",
        "seed": 0,
    }
    if device_bytes is not None:
        # vLLM does not start where less than this is free, also if its cache has a size of its own.
        share = settings.memory_bytes / device_bytes
        arguments["gpu_memory_utilization"] = max(SMALLEST_SHARE, min(1.0, share))
        # A rank sees its own GPU only: the memory of its neighbours cannot be mapped.
        arguments["disable_custom_all_reduce"] = True
    return arguments
