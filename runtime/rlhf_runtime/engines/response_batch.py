"""The responses of one call: rows in order, on top of any generation engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count

import numpy as np
from numpy.typing import NDArray

from rlhf_api.plan_fusion import CHECK_STEPS
from rlhf_api.spec.stopping import StopReason
from rlhf_api.spec.truncation import Truncation
from rlhf_runtime.dataplane.columns import Column, Rows, pack
from rlhf_runtime.engines.generation import (
    GenerationEngine,
    NewSequence,
    SequenceEnded,
)
from rlhf_runtime.errors import StaleWeights
from rlhf_runtime.hooks import Hook, noop


@dataclass(frozen=True)
class Sampling:
    """Sampling parameters; temperature 0 is greedy. `seeds[rows]`, one per response."""

    temperature: float
    seeds: Sequence[int]
    truncation: Truncation = Truncation()
    records_kept_tokens: bool = False
    """True to record the tokens that the truncation kept."""


@dataclass(frozen=True)
class Generated:
    """Generated responses."""

    tokens: Column
    """Packed int32 tokens."""
    log_probs: Column
    """Packed float32 log-probabilities under the distribution that was sampled."""
    reasons: tuple[StopReason | None, ...]
    """The reason for the end of each response. None: it was aborted."""
    kept_tokens: Column | None = None
    """Packed int32 encoded sets of the tokens that a truncation kept. None: not recorded."""
    mask: Column | None = None
    """Packed int8: 1 for a sampled token, 0 for one of a tool's answer. None: all were sampled."""

    @property
    def num_sampled(self) -> NDArray[np.int32]:
        """int32[rows]: number of sampled tokens."""
        assert self.tokens.lengths is not None
        if self.mask is None:
            return self.tokens.lengths
        sums = [int(run.sum()) for run in self.mask.runs()]
        return np.array(sums, dtype=np.int32)

    @property
    def finished(self) -> NDArray[np.int8]:
        """int8[rows]: 1 if the response ended by itself, 0 if it was cut off."""
        ends = [reason is not None and reason.is_complete for reason in self.reasons]
        return np.array(ends, dtype=np.int8)


class ResponseBatch:
    """Rows in the order of `add`. All ranks of an engine make the same calls in the same order."""

    def __init__(self, engine: GenerationEngine, version: int, ids: Iterator[int]) -> None:
        """Start without rows.

        Args:
            engine: generates the rows of this batch alone.
            version: of the weights.
            ids: of sequences, unique in the engine.
        """
        self._engine, self._version, self._ids = engine, version, ids
        self._ended: list[SequenceEnded | None] = []
        # Rows of running sequences, by the sequence's id.
        self._running: dict[int, int] = {}
        self._records_kept_tokens = False

    @property
    def num_rows(self) -> int:
        """Number of rows that were added."""
        return len(self._ended)

    @property
    def num_running(self) -> int:
        """Number of rows with an unfinished response."""
        return len(self._running)

    @property
    def has_ended(self) -> NDArray[np.bool_]:
        """bool[rows]: true if the response is complete."""
        return np.array(
            [end is not None and end.reason is not None for end in self._ended],
            dtype=np.bool_,
        )

    def add(
        self,
        prompts: Column,
        sampling: Sampling,
        max_tokens: Sequence[int],
        *,
        num_generated: Sequence[int] | None = None,
        keeps_prefixes: bool = False,
    ) -> range:
        """Add a row per packed prompt; return the numbers of these rows.

        Args:
            prompts: packed tokens.
            sampling: with a seed per prompt.
            max_tokens: limit of each response.
            num_generated: of each prompt, the tokens at its end that were generated earlier. None:
                there are none.
            keeps_prefixes: as in `GenerationEngine.add`.

        Raises:
            StaleWeights: the engine has other weights than this batch's.
        """
        self._records_kept_tokens = sampling.records_kept_tokens
        sequences = [
            NewSequence(
                id=next(self._ids),
                prompt=np.asarray(prompt, dtype=np.int32),
                max_tokens=limit,
                temperature=sampling.temperature,
                seed=seed,
                weight_version=self._version,
                num_generated=generated,
                truncation=sampling.truncation,
                records_kept_tokens=sampling.records_kept_tokens,
            )
            for prompt, seed, limit, generated in zip(
                prompts.runs(),
                sampling.seeds,
                max_tokens,
                [0] * len(max_tokens) if num_generated is None else num_generated,
                strict=True,
            )
        ]
        self._engine.add(sequences, keeps_prefixes=keeps_prefixes)
        for sequence in sequences:
            self._running[sequence.id] = len(self._ended)
            self._ended.append(None)
        return range(len(self._ended) - len(sequences), len(self._ended))

    def step(self) -> list[tuple[int, SequenceEnded]]:
        """Compute the next token of running rows; return the rows that ended, rising."""
        ends = self._engine.step()
        rows = [self._running[end.id] for end in ends]
        self._record(ends)
        return sorted(zip(rows, ends, strict=True), key=lambda row: row[0])

    def run(self, tick: Hook = noop) -> None:
        """Run until every response has ended; `tick` after every step."""
        # On GPUs a batch may still be in flight when the last sequence has ended.
        while self._engine.has_work:
            self._record(self._engine.step())
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
                if self._engine.has_work:
                    self._record(self._engine.step())
                tick()
            if is_enough(self.num_running):
                return

    def abort(self) -> None:
        """Abort unfinished rows; their responses so far stay."""
        self._record(self._engine.abort(list(self._running)))

    def generated(self, rows: Rows | None = None) -> Generated:
        """The responses of some rows that ended or were aborted; None: of all."""
        numbers = range(len(self._ended)) if rows is None else rows.tolist()
        ends = [end for number in numbers if (end := self._ended[number]) is not None]
        assert len(ends) == len(numbers), "running rows have no response yet"
        return Generated(
            pack([end.tokens for end in ends], np.int32),
            pack([end.log_probs for end in ends], np.float32),
            tuple(end.reason for end in ends),
            self._kept_tokens(ends),
        )

    def _kept_tokens(self, ends: Sequence[SequenceEnded]) -> Column | None:
        """The encoded sets of the tokens that sampling kept."""
        if not self._records_kept_tokens:
            return None
        sets = [end.kept_tokens for end in ends if end.kept_tokens is not None]
        assert len(sets) == len(ends), "the rows of a batch are sampled alike"
        return pack(sets, np.int32)

    def _record(self, ends: Sequence[SequenceEnded]) -> None:
        for end in ends:
            self._ended[self._running.pop(end.id)] = end


class BatchGenerator:
    """Generates responses to packed prompts, one call after the other."""

    def __init__(self, engine: GenerationEngine) -> None:
        """Drive an engine that nothing else adds sequences to."""
        self._engine = engine
        self._ids = count()

    def generate(
        self,
        prompts: Column,
        sampling: Sampling,
        version: int,
        max_tokens: int,
        tick: Hook = noop,
    ) -> Generated:
        """Generate one response per packed prompt, in the same order; `tick` after every step.

        Args:
            prompts: packed tokens.
            sampling: with a seed per prompt.
            version: of the weights that generate.
            max_tokens: limit of each response.
            tick: called after every step.

        Raises:
            StaleWeights: the engine has other weights.
        """
        batch = self.start(prompts, sampling, version, max_tokens)
        batch.run(tick)
        return batch.generated()

    def new_batch(self, version: int) -> ResponseBatch:
        """Return a batch without rows.

        Args:
            version: of the weights that generate.

        Raises:
            StaleWeights: the engine has sequences of an earlier call.
        """
        if self._engine.has_work:
            # Their keys and values would stay in the prefix cache, which this call shares.
            raise StaleWeights(
                "an earlier call has not ended: got an engine with running sequences, allowed an "
                "idle one; nothing was generated"
            )
        return ResponseBatch(self._engine, version, self._ids)

    def start(
        self, prompts: Column, sampling: Sampling, version: int, max_tokens: int
    ) -> ResponseBatch:
        """Add the rows of `generate` without running them.

        Raises:
            StaleWeights: the engine has other weights, or sequences of an earlier call.
        """
        batch = self.new_batch(version)
        batch.add(prompts, sampling, [max_tokens] * len(sampling.seeds))
        return batch
