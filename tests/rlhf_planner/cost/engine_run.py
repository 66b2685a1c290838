"""When the responses of a generation engine end, for given lengths: the time model, which knows
nothing but distributions, is compared with this.

An engine decodes a token of each running row in a step. Rows that wait take the place of those that
end. Between two ends a rows run; the d steps until then take d s(a, C), where C are the tokens in
the cache half-way, and s what a step takes. That is exact where s is linear in C.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rlhf_planner.cost.micro_batches import Lengths

GOLDEN_RATIO = (1 + 5**0.5) / 2

StepSeconds = Callable[[float, float], float]
"""Seconds of a step, from the rows that run and the tokens that they have in the cache. More of
either must not make it shorter."""


@dataclass(frozen=True)
class Row:
    """A prompt and what is there of its response."""

    cached_tokens: float
    """Of the prompt and of the response so far."""
    left_tokens: float
    """Of the response, still to come."""


@dataclass(frozen=True)
class EngineRun:
    """When an engine has done what."""

    ends: tuple[float, ...]
    """Seconds from the start, of each row."""
    first_steps: tuple[float, ...]
    """Steps before the first one of each row."""
    seconds: tuple[float, ...]
    """At which a row ended, and 0."""
    steps: tuple[float, ...]
    """How many were done at each of these."""

    def generated_tokens(self, index: int, at_seconds: float) -> float:
        """What there is of a row's response at a time before its end; steps between two ends of
        rows are taken to be of the same duration."""
        place = bisect_right(self.seconds, at_seconds)
        if place == len(self.seconds):
            done = self.steps[-1]
        else:
            begin, end = self.seconds[place - 1], self.seconds[place]
            share = (at_seconds - begin) / (end - begin)
            done = self.steps[place - 1] + share * (self.steps[place] - self.steps[place - 1])
        return max(0.0, done - self.first_steps[index])


def run_engine(rows: Sequence[Row], concurrent_rows: int, step_seconds: StepSeconds) -> EngineRun:
    """An engine's rows from the first step to the last.

    Args:
        rows: begin in this order.
        concurrent_rows: at most so many run at once; 1 or more.
        step_seconds: of the engine.
    """
    ends, first_steps = [0.0] * len(rows), [0.0] * len(rows)
    seconds, steps = [0.0], [0.0]
    running: list[tuple[float, int]] = []
    coming = 0
    cached = 0.0  # of the running rows, less the steps done for each of them
    while coming < len(rows) or running:
        while coming < len(rows) and len(running) < concurrent_rows:
            first_steps[coming] = steps[-1]
            heapq.heappush(running, (steps[-1] + rows[coming].left_tokens, coming))
            cached += rows[coming].cached_tokens - steps[-1]
            coming += 1
        end, index = heapq.heappop(running)
        number = 1 + len(running)
        if end > steps[-1]:
            half_way = cached + number * (steps[-1] + end) / 2
            seconds.append(seconds[-1] + (end - steps[-1]) * step_seconds(number, half_way))
            steps.append(end)
        ends[index] = seconds[-1]
        cached -= rows[index].cached_tokens - first_steps[index]
    return EngineRun(tuple(ends), tuple(first_steps), tuple(seconds), tuple(steps))


def spread_lengths(lengths: Lengths, number: int) -> tuple[float, ...]:
    """So many lengths that are spread as a distribution is: those which a share u of all exceeds,
    for u = 1/(2 n), 3/(2 n), .... Long and short ones follow each other evenly, by the fractional
    parts of multiples of the golden ratio, as nobody knows which rows become long.

    Args:
        lengths: of responses.
        number: n, 1 or more.
    """
    in_turn = sorted(range(number), key=lambda index: index * GOLDEN_RATIO % 1.0)
    shares = [(2 * index + 1) / (2 * number) for index in in_turn]
    return tuple(map(lengths.exceeded_by, shares))
