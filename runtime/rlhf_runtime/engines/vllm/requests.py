"""Requests: the requests of one call in an engine, and their responses so far."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlhf_api.plan_fusion import CHECK_STEPS
from rlhf_runtime.dataplane.columns import Column, Rows
from rlhf_runtime.errors import GenerationFailed
from rlhf_runtime.hooks import Hook, noop


@dataclass(frozen=True)
class Sampling:
    """Sampling parameters; temperature 0 is greedy. `seeds[rows]`, one per response."""

    temperature: float
    seeds: Sequence[int]


@dataclass(frozen=True)
class Generated:
    """Generated responses."""

    tokens: Column
    """Packed int32 tokens."""
    log_probs: Column
    """Packed float32 log-probabilities under the distribution that was sampled."""
    finished: NDArray[np.int8]
    """1 if the response ended by itself, 0 if it was cut."""


class Requests:
    """Rows in the order of `add`. All ranks of an engine make the same calls in the same order."""

    def __init__(self, core: Any, stop_token_ids: Sequence[int], numbers: Iterator[int]) -> None:
        """Start without rows.

        Args:
            core: vLLM's engine core.
            stop_token_ids: tokens that end a response.
            numbers: request numbers, unique in the engine.
        """
        self._core, self._stop_token_ids, self._numbers = core, list(stop_token_ids), numbers
        self._tokens: list[list[int]] = []
        self._log_probs: list[list[float]] = []
        self._finished: list[bool] = []
        self._running: dict[str, int] = {}

    @property
    def num_running(self) -> int:
        """Number of rows with an unfinished response."""
        return len(self._running)

    @property
    def has_ended(self) -> NDArray[np.bool_]:
        """bool[rows]: true if the response is complete."""
        ended = np.ones(len(self._tokens), dtype=np.bool_)
        ended[list(self._running.values())] = False
        return ended

    def add(self, prompts: Column, sampling: Sampling, max_tokens: Sequence[int]) -> None:
        """Add a row per packed prompt; `max_tokens[prompts]` bounds the responses."""
        from vllm.sampling_params import SamplingParams
        from vllm.v1.engine import EngineCoreRequest

        now = time.time()
        for prompt, seed, limit in zip(prompts.runs(), sampling.seeds, max_tokens, strict=True):
            parameters = SamplingParams(
                temperature=sampling.temperature,
                max_tokens=limit,
                logprobs=0,  # only of sampled tokens
                seed=seed if sampling.temperature > 0 else None,
                stop_token_ids=self._stop_token_ids,
                ignore_eos=True,  # stop_token_ids lists all tokens that end a response
                detokenize=False,
            )
            request = EngineCoreRequest(
                request_id=str(next(self._numbers)),
                prompt_token_ids=prompt.tolist(),
                mm_features=None,
                sampling_params=parameters,
                pooling_params=None,
                arrival_time=now,
                lora_request=None,
                cache_salt=None,
                data_parallel_rank=None,
            )
            # Before the engine gets it: outputs are matched to rows by the request's id.
            self._running[request.request_id] = len(self._tokens)
            self._tokens.append([])
            self._log_probs.append([])
            self._finished.append(False)
            prepared, wave = self._core.preprocess_add_request(request)
            self._core.add_request(prepared, wave)

    def run(self, tick: Hook = noop) -> None:
        """Run until every response has ended; `tick` after every step."""
        # On GPUs a batch may still be in flight when the last request has ended.
        while self._has_work:
            self._step()
            tick()

    def run_until(self, is_enough: Callable[[int], bool], tick: Hook = noop) -> None:
        """Run until `is_enough` returns true; it is called after every CHECK_STEPS steps.

        Args:
            is_enough: called with the number of unfinished rows.
            tick: called after every step.
        """
        # An engine without work calls it, too: `is_enough` may be collective over engines.
        while True:
            for _ in range(CHECK_STEPS):
                if self._has_work:
                    self._step()
                tick()
            if is_enough(self.num_running):
                return

    def abort(self) -> None:
        """Abort unfinished requests; their responses so far stay."""
        self._core.abort_requests(list(self._running))
        # The engine still steps until it has removed them; outputs of these steps are ignored.
        running, self._running = self._running, {}
        self.run()
        self._running = running

    def generated(self, rows: Rows | None = None) -> Generated:
        """The responses so far of some rows; None: of all."""
        numbers = range(len(self._tokens)) if rows is None else rows.tolist()
        tokens = [self._tokens[number] for number in numbers]
        log_probs = [self._log_probs[number] for number in numbers]
        lengths = np.fromiter(map(len, tokens), dtype=np.int32, count=len(tokens))
        return Generated(
            Column(np.fromiter((t for row in tokens for t in row), dtype=np.int32), lengths),
            Column(np.fromiter((p for row in log_probs for p in row), dtype=np.float32), lengths),
            np.array([self._finished[number] for number in numbers], dtype=np.int8),
        )

    @property
    def _has_work(self) -> bool:
        return bool(self._core.scheduler.has_requests() or self._core.batch_queue)

    def _step(self) -> None:
        outputs, executed = self._core.step_fn()
        self._core.post_step(model_executed=executed)
        for output in outputs[0].outputs if outputs and 0 in outputs else ():
            row = self._running.get(output.request_id)
            if row is not None:  # else it was aborted while the step was in flight
                self._append(row, output)

    def _append(self, row: int, output: Any) -> None:
        from vllm.v1.engine import FinishReason

        self._tokens[row].extend(output.new_token_ids)
        if output.new_logprobs is not None:
            self._log_probs[row].extend(output.new_logprobs.logprobs[:, 0].tolist())
        if output.finish_reason is None:
            return
        if output.finish_reason not in (FinishReason.STOP, FinishReason.LENGTH):
            raise GenerationFailed(
                f"vLLM ended a request: got finish reason {output.finish_reason} for row {row} "
                f"after {len(self._tokens[row])} tokens, allowed stop or length"
            )
        self._finished[row] = output.finish_reason == FinishReason.STOP
        del self._running[output.request_id]
