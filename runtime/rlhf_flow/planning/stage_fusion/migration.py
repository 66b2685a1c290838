"""Inter-stage fusion: when few rows are left, few engines take all of them, and the devices of the
others begin with the inference calls. Which number of rows that is best at. Pure.

Of E engines, K remain when R rows are left at t seconds:

    K = max(ceil(R / concurrent rows), ceil(tokens of these rows in the end / cache of an engine))
    G = t + tokens that move / K x seconds of a token + the longest run of the K engines

The work of the inference calls, in seconds of one engine's devices, is W = tokens of all rows x
seconds of a token. From t + s on, where s is what it takes to start them, the devices of E - K
engines work on rows that have ended, never on others. What is left of W at G, r, they do with those
of the K engines, which take part from G + s on:

    seconds = b + min(r / (E - K), (r + K (G + s - b)) / E),   b = max(G, t + s)

Without fusion it takes G + s + W / E, with G of all engines. Work is taken to be divisible at will.

Source: RLHFuse (arXiv 2409.13221), inter-stage fusion: the number of engines that remain follows
from the batch that saturates one and from its cache; the threshold is found by simulation.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from rlhf_flow.planning.stage_fusion.engine_run import (
    EngineRun,
    Row,
    StepSeconds,
    run_engine,
)

MOST_THRESHOLDS = 64
"""How many thresholds are tried where none are given."""


@dataclass(frozen=True)
class Generation:
    """A GENERATE call. Rows go to its engines in turn."""

    prompt_tokens: float
    """Of each row."""
    response_tokens: tuple[float, ...]
    """Of each row: an explicit list, or `spread_lengths`, in the order in which they begin."""
    num_engines: int
    concurrent_rows: int
    """Of an engine, at most: no more than saturate it."""
    cache_tokens: float
    """That an engine's cache holds."""
    step_seconds: StepSeconds
    """Of an engine."""
    migration_token_seconds: float
    """For an engine to get a token's keys and values: over a link, or computed anew."""

    def __post_init__(self) -> None:
        is_valid = (
            self.response_tokens
            and min(self.response_tokens) > 0
            and self.prompt_tokens >= 0
            and min(self.num_engines, self.concurrent_rows) >= 1
            and self.cache_tokens > 0
            and self.migration_token_seconds >= 0
        )
        if not is_valid:
            raise ValueError(
                f"a generation is impossible: got {self}, allowed an engine, a row at once, and "
                "rows of positive lengths; correct the estimate"
            )


@dataclass(frozen=True)
class Inference:
    """The INFER calls on the rows, such as those of reference, critic and reward model."""

    token_seconds: float
    """For the devices of one engine: a token of a row, prompt and response alike, through all
    models."""
    start_seconds: float = 0.0
    """Until devices that generated can begin: the cache freed, weights loaded."""


@dataclass(frozen=True)
class Migration:
    """What a threshold leads to."""

    threshold_rows: int
    """Migrate when so many are left; 0: never."""
    remaining_engines: int
    """That generate to the end."""
    trigger_seconds: float
    """From the start to the migration."""
    generation_seconds: float
    """From the start to the end of the last response."""
    seconds: float
    """From the start to the end of inference."""
    serial_seconds: float
    """The same without fusion."""

    @property
    def speed_up(self) -> float:
        """How many times as long it takes without fusion."""
        return self.serial_seconds / self.seconds


def best_migration(
    generation: Generation, inference: Inference, thresholds: Iterable[int] | None = None
) -> Migration:
    """The threshold that minimises the seconds of generation and inference; of equal ones the
    smallest. Where none pays, the result is that of no fusion.

    Args:
        generation: the rows and the engines.
        inference: what is done with rows that have ended.
        thresholds: numbers of rows to try. None: up to 64, evenly spread, then up to 64 around the
            best of these, so all of them where there are no more than 65 rows.
    """
    stages = _Stages(generation, inference)
    if thresholds is not None:
        return stages.best(thresholds)
    number = len(generation.response_tokens)
    step = math.ceil(number / (MOST_THRESHOLDS + 1))
    best = stages.best(range(step, number, step))
    nearest = range(best.threshold_rows - step + 1, best.threshold_rows + step)
    around = nearest[:: math.ceil(len(nearest) / MOST_THRESHOLDS)]
    return stages.best([best.threshold_rows, *around])


class _Stages:
    """Both stages, with the runs of all engines to the end."""

    def __init__(self, generation: Generation, inference: Inference) -> None:
        self._generation, self._inference = generation, inference
        self._rows = [Row(generation.prompt_tokens, each) for each in generation.response_tokens]
        self._runs = [
            self._run(self._rows[engine :: generation.num_engines])
            for engine in range(generation.num_engines)
        ]
        engines = generation.num_engines
        self._ends = [
            self._runs[index % engines].ends[index // engines] for index in range(len(self._rows))
        ]
        self._in_order = sorted(range(len(self._rows)), key=self._ends.__getitem__)
        self._work = [
            inference.token_seconds * (row.cached_tokens + row.left_tokens) for row in self._rows
        ]

    def _run(self, rows: Sequence[Row]) -> EngineRun:
        generation = self._generation
        return run_engine(rows, generation.concurrent_rows, generation.step_seconds)

    def best(self, thresholds: Iterable[int]) -> Migration:
        """Of some thresholds, and of no fusion."""
        found = [self.without_fusion]
        for threshold in thresholds:
            if (migration := self.migrate(threshold)) is not None:
                found.append(migration)
        return min(found, key=lambda migration: (migration.seconds, migration.threshold_rows))

    @cached_property
    def without_fusion(self) -> Migration:
        """One stage after the other."""
        generated = max(self._ends)
        engines = self._generation.num_engines
        seconds = generated + self._inference.start_seconds + math.fsum(self._work) / engines
        return Migration(0, engines, generated, generated, seconds, seconds)

    def migrate(self, threshold: int) -> Migration | None:
        """With fusion; None where the rows that are left need all engines."""
        if not 0 < threshold < len(self._rows):
            return None
        ended, left = self._in_order[:-threshold], self._in_order[-threshold:]
        engines, remaining = self._generation.num_engines, self._remaining_engines(left)
        if remaining >= engines:
            return None
        trigger = self._ends[ended[-1]]
        tail = self._tail_ends(left, trigger, remaining)
        arrivals = [(trigger, math.fsum(self._work[index] for index in ended))]
        arrivals += sorted((tail[index], self._work[index]) for index in left)
        generated = arrivals[-1][0]
        return Migration(
            threshold,
            remaining,
            trigger,
            generated,
            self._inferred(arrivals, generated, remaining),
            self.without_fusion.seconds,
        )

    def _remaining_engines(self, left: Sequence[int]) -> int:
        tokens = sum(self._rows[index].cached_tokens for index in left)
        tokens += sum(self._rows[index].left_tokens for index in left)
        return max(
            math.ceil(len(left) / self._generation.concurrent_rows),
            math.ceil(tokens / self._generation.cache_tokens),
        )

    def _tail_ends(self, left: Sequence[int], trigger: float, remaining: int) -> dict[int, float]:
        """When each of the rows ends that are left. Those engines remain that have most of them;
        each other row goes to the one that has fewest."""
        engines = self._generation.num_engines
        held: dict[int, list[int]] = {engine: [] for engine in range(engines)}
        for index in sorted(left):
            held[index % engines].append(index)
        by_rows = sorted(held, key=lambda engine: -len(held[engine]))
        kept = {engine: held[engine] for engine in by_rows[:remaining]}
        rows = {index: self._row_at(index, trigger) for index in left}
        moved_tokens = 0.0
        for engine in by_rows[remaining:]:
            for index in held[engine]:
                min(kept.values(), key=len).append(index)
                moved_tokens += rows[index].cached_tokens
        begin = trigger + moved_tokens / remaining * self._generation.migration_token_seconds
        found: dict[int, float] = {}
        for indices in kept.values():
            run = self._run([rows[index] for index in indices])
            found |= {index: begin + end for index, end in zip(indices, run.ends, strict=True)}
        return found

    def _row_at(self, index: int, seconds: float) -> Row:
        engines, row = self._generation.num_engines, self._rows[index]
        done = self._runs[index % engines].generated_tokens(index // engines, seconds)
        done = min(done, row.left_tokens)
        return Row(row.cached_tokens + done, row.left_tokens - done)

    def _inferred(
        self, arrivals: Sequence[tuple[float, float]], generated: float, remaining: int
    ) -> float:
        """Seconds at which all work has been done that arrives with the rows that end."""
        engines, start = self._generation.num_engines, self._inference.start_seconds
        freed = engines - remaining
        clock = arrivals[0][0] + start
        begin = max(generated, clock)
        left = 0.0
        for arrival, work in arrivals:
            clock = max(clock, arrival)
            done = min(work, max(0.0, generated - clock) * freed)
            clock += done / freed
            left += work - done
        both = (left + remaining * (generated + start - begin)) / engines
        return begin + min(left / freed, both)
