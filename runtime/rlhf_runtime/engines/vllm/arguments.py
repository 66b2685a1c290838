"""The vLLM arguments that follow from an engine's settings. Pure.

All sizes come from the plan: vLLM's own estimates assume a device without a trainer.
"""

from __future__ import annotations

from typing import Any

from rlhf_runtime.engines.generation import EngineSettings
from rlhf_sizing.limits import BATCHED_TOKENS

MIN_MEMORY_SHARE = 0.01
"""Minimum share of a device's memory: vLLM refuses zero."""


def engine_arguments(settings: EngineSettings, device_bytes: int | None) -> dict[str, Any]:
    """The arguments of vLLM's `EngineArgs`.

    Args:
        settings: of the engine.
        device_bytes: total memory of its GPU; None on a CPU.
    """
    longest = settings.max_sequence_tokens
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
        # The CPU worker cannot rewind random generators, which chunked prefill requires.
        "enable_chunked_prefill": device_bytes is not None,
        "enable_prefix_caching": settings.share_prompts,
        "enable_sleep_mode": device_bytes is not None,
        "disable_log_stats": True,
        "logprobs_mode": "processed_logprobs",
        "seed": 0,
    }
    if device_bytes is not None:
        # CPUs have another model runner, which `patches.record_kept_tokens` makes record them.
        arguments["return_sampling_mask"] = settings.records_kept_tokens
        # vLLM refuses to start with less free memory than this, even if its cache has a fixed size.
        share = settings.memory_bytes / device_bytes
        arguments["gpu_memory_utilization"] = max(MIN_MEMORY_SHARE, min(1.0, share))
        # A rank's process has access to its own GPU only, and cannot map the memory of others.
        arguments["disable_custom_all_reduce"] = True
    return arguments
