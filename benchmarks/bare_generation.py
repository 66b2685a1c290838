"""The baseline of bench-rank's generation: vLLM's own `LLM` in a process of its own.

It has vLLM's defaults and the same prompts, sampling and cache. Prints one line of JSON: seconds of
the engine's start, and of each round.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path

# Before vLLM is imported: it reads them then.
os.environ.update(
    VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_NO_USAGE_STATS="1", VLLM_LOGGING_LEVEL="ERROR"
)

from rank_load import Load, rank_load  # noqa: E402


def main() -> None:
    """Start the engine and generate in rounds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("load", type=json.loads, help="the fields of `Load`")
    parser.add_argument("--memory-share", type=float, help="of a GPU's memory")
    options = parser.parse_args()
    load = Load(**options.load)
    start = time.perf_counter()
    from vllm import LLM, SamplingParams

    share = {} if options.memory_share is None else {"gpu_memory_utilization": options.memory_share}
    llm = LLM(
        model=str(options.folder),
        skip_tokenizer_init=True,
        dtype=load.dtype,
        kv_cache_memory_bytes=load.cache_bytes,
        max_model_len=load.prompt + load.response,
        max_num_seqs=load.rows,
        enable_prefix_caching=False,
        disable_log_stats=True,
        logprobs_mode="processed_logprobs",
        **share,
    )
    start_seconds = time.perf_counter() - start
    prompts = [{"prompt_token_ids": run.tolist()} for run in rank_load(load).runs()]
    # A seed for each row, as ours has: vLLM then draws row by row.
    sampling = [
        SamplingParams(
            max_tokens=load.response, logprobs=0, ignore_eos=True, detokenize=False, seed=row
        )
        for row in range(load.rows)
    ]
    seconds = []
    for _ in range(load.rounds + 1):
        begin = time.perf_counter()
        llm.generate(prompts, sampling, use_tqdm=False)
        seconds.append(time.perf_counter() - begin)
    print(json.dumps({"start": start_seconds, "rounds": seconds[1:]}), flush=True)


if __name__ == "__main__":
    main()
