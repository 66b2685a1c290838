"""The baseline of bench-step: GRPO in one process, as in a careful script.

vLLM's `LLM.generate` and a Hugging Face model side by side: no Ray, no controller, no data plane.
A line on stdin starts a step; the answer is a line of JSON on stdout: seconds by phase.

The same settings as ours: ordinary weights in vLLM, one forward pass over right-padded rows without
an attention mask, the output projection only where a response token is predicted, fused AdamW, no
compilation of vLLM's helper for log-probabilities.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

# Before the imports below: vLLM and OpenMP read the environment then.
os.environ.update(
    VLLM_ENABLE_V1_MULTIPROCESSING="0",
    VLLM_CPU_OMP_THREADS_BIND="nobind",
    VLLM_NO_USAGE_STATS="1",
    VLLM_LOGGING_LEVEL="ERROR",
    TOKENIZERS_PARALLELISM="false",
    TORCH_COMPILE_DISABLE="1",
    OMP_WAIT_POLICY="PASSIVE",
)

import torch  # noqa: E402
from plain_settings import (  # noqa: E402
    CLIP_RANGE,
    LEARNING_RATE,
    MAX_NEW,
    PROMPT_TOKENS,
    PROMPTS,
    SAMPLES,
    WARMUP,
)
from task import END, decode, encode, exact_match  # noqa: E402
from transformers import AutoModelForCausalLM  # noqa: E402

from rlhf_runtime.data.sampler import rows_for_step  # noqa: E402
from rlhf_runtime.data.sort_digits import TRAINING_ROWS, training_rows  # noqa: E402


class PlainLoop:
    """Model, optimizer and engine in one process."""

    def __init__(self, folder: Path, threads: int, max_num_seqs: int, kv_cache_bytes: int) -> None:
        torch.set_num_threads(threads)
        set_num_threads = torch.set_num_threads
        import vllm.model_executor.layers.utils as layer_utils

        # On CPUs vLLM packs weights for its own kernels; updates would not reach the packed copy.
        def plain_linear(layer: torch.nn.Module, remove_weight: bool = False) -> None:
            layer.cpu_linear = torch.nn.functional.linear

        layer_utils.dispatch_cpu_unquantized_gemm = plain_linear
        from vllm import LLM, SamplingParams

        self._llm = LLM(
            model=str(folder),
            skip_tokenizer_init=True,
            dtype="float32",
            enforce_eager=True,
            kv_cache_memory_bytes=kv_cache_bytes,
            max_model_len=16,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=8192,
            enable_prefix_caching=False,
            disable_log_stats=True,
            logprobs_mode="processed_logprobs",
            seed=0,
        )
        torch.set_num_threads = set_num_threads  # vLLM's CPU worker disables it
        torch.set_num_threads(threads)
        self._sampling = SamplingParams(
            n=SAMPLES, temperature=1.0, max_tokens=MAX_NEW, logprobs=0, stop_token_ids=[END]
        )
        worker = self._llm.llm_engine.model_executor.driver_worker.worker
        self._engine_model = worker.model_runner.model
        self._model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        self._model.config.use_cache = False
        self._optimizer = torch.optim.AdamW(
            self._model.parameters(),
            lr=LEARNING_RATE,
            betas=(0.9, 0.95),
            weight_decay=0,
            fused=True,
        )
        # Warm-up as in example 01.
        self._scheduler = torch.optim.lr_scheduler.LambdaLR(
            self._optimizer, lambda update: min(1.0, (update + 1) / WARMUP)
        )
        self._rows = list(training_rows(0))
        self._step = 0
        self._phases: dict[str, float] = {}

    def step(self) -> dict[str, float]:
        """Run one GRPO step; returns seconds by phase, and the mean reward."""
        self._phases = {}
        begin = time.perf_counter()
        # The same prompts in the same order as ours.
        numbers = rows_for_step(self._step, TRAINING_ROWS, PROMPTS, True, 0)
        rows = [self._rows[number] for number in numbers]
        self._step += 1
        with self._phase("transition"):
            self._engine_model.load_weights(self._model.state_dict().items())
        with self._phase("generate"):
            responses, log_probs = self._generate(rows)
        with self._phase("score"):
            scores = torch.tensor(
                [
                    exact_match(decode(response), rows[number // SAMPLES]["answer"])
                    for number, response in enumerate(responses)
                ]
            )
        with self._phase("train"):
            self._train(rows, responses, log_probs, scores)
        return {**self._phases, "step": time.perf_counter() - begin, "reward": float(scores.mean())}

    def _generate(self, rows: list[Any]) -> tuple[list[list[int]], list[list[float]]]:
        prompts = [{"prompt_token_ids": encode(row["prompt"])} for row in rows]
        outputs = self._llm.generate(prompts, self._sampling, use_tqdm=False)
        completions = [completion for output in outputs for completion in output.outputs]
        tokens = [list(completion.token_ids) for completion in completions]
        log_probs = [
            [entry[token].logprob for entry, token in zip(c.logprobs, c.token_ids, strict=True)]
            for c in completions
        ]
        return tokens, log_probs

    def _train(
        self,
        rows: list[Any],
        responses: list[list[int]],
        log_probs: list[list[float]],
        scores: torch.Tensor,
    ) -> None:
        lengths = torch.tensor([len(response) for response in responses])
        longest = PROMPT_TOKENS + int(lengths.max())
        token_ids = torch.tensor(
            [
                tokens + [0] * (longest - len(tokens))
                for number, response in enumerate(responses)
                for tokens in [encode(rows[number // SAMPLES]["prompt"]) + response]
            ]
        )
        grouped = scores.view(-1, SAMPLES)
        # GRPO: rewards relative to the group's mean, in units of its standard deviation.
        spread = grouped.std(dim=1, keepdim=True) + 1e-4
        advantages = ((grouped - grouped.mean(dim=1, keepdim=True)) / spread).flatten()
        mask = torch.arange(longest - PROMPT_TOKENS) < lengths[:, None]
        hidden = self._model.model(input_ids=token_ids, use_cache=False).last_hidden_state
        # Only where a response token is predicted: logits of prompts are not needed.
        logits = self._model.lm_head(hidden[:, PROMPT_TOKENS - 1 : -1][mask])
        targets = token_ids[:, PROMPT_TOKENS:][mask]
        new = torch.log_softmax(logits, dim=1).gather(1, targets[:, None])[:, 0]
        old = torch.tensor([value for row in log_probs for value in row])
        per_token = torch.repeat_interleave(advantages, lengths)
        ratio = (new - old).exp()
        clipped = ratio.clamp(1 - CLIP_RANGE, 1 + CLIP_RANGE)
        loss = -torch.minimum(ratio * per_token, clipped * per_token).mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self._model.parameters(), 1.0)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        self._scheduler.step()

    @contextmanager
    def _phase(self, name: str) -> Iterator[None]:
        begin = time.perf_counter()
        yield
        self._phases[name] = time.perf_counter() - begin


def main() -> None:
    """Run a step per line on stdin, until stdin ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="the warm-started model")
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--max-num-seqs", type=int, required=True, help="as in our plan")
    parser.add_argument("--kv-cache-bytes", type=int, required=True, help="as in our plan")
    options = parser.parse_args()
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # libraries print to stdout, which is for answers
    loop = PlainLoop(options.folder, options.threads, options.max_num_seqs, options.kv_cache_bytes)
    print(json.dumps({"ready": True}), file=answers, flush=True)
    for _ in sys.stdin:
        print(json.dumps(loop.step()), file=answers, flush=True)


if __name__ == "__main__":
    main()
