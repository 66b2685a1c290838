"""The baseline of bench-startup: one process imports vLLM and generates its first token.

Prints one line of JSON: seconds since the process was started, by phase.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path

import psutil


def main() -> None:
    """Import, build, generate."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    options = parser.parse_args()
    # Before the import: vLLM reads these variables then.
    os.environ.update(
        VLLM_ENABLE_V1_MULTIPROCESSING="0",
        VLLM_CPU_OMP_THREADS_BIND="nobind",
        VLLM_NO_USAGE_STATS="1",
        VLLM_LOGGING_LEVEL="ERROR",
        TORCH_COMPILE_DISABLE="1",
    )
    # From the start of the process, not of this function: the interpreter's own start counts.
    marks = {"start": psutil.Process().create_time()}
    from vllm import LLM, SamplingParams

    marks["imports"] = time.time()
    llm = LLM(
        model=str(options.folder),
        skip_tokenizer_init=True,
        dtype="float32",
        enforce_eager=True,
        kv_cache_memory_bytes=2**26,
        max_model_len=16,
        max_num_seqs=64,
        enable_prefix_caching=False,
        disable_log_stats=True,
        logprobs_mode="processed_logprobs",
    )
    marks["engine"] = time.time()
    llm.generate(
        [{"prompt_token_ids": [3, 4, 5]}],
        SamplingParams(max_tokens=1, logprobs=0, detokenize=False),
        use_tqdm=False,
    )
    marks["first generation"] = time.time()
    times = list(marks.items())
    phases = {name: end - begin for (_, begin), (name, end) in zip(times, times[1:], strict=False)}
    print(json.dumps({**phases, "total": times[-1][1] - times[0][1]}), flush=True)


if __name__ == "__main__":
    main()
