"""Conversations on one engine, decode step by decode step, as the runtime runs them: the time
model, which knows means only, is compared with this."""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rlhf_planner.cost.micro_batches import Lengths

StepSeconds = Callable[[int], float]
"""Seconds of a step, from the sequences that are decoded."""

Conversation = Sequence[int]
"""Sampled tokens of each turn, one at least."""


@dataclass(frozen=True)
class ConversationRun:
    """Time of some conversations."""

    seconds: float
    wait_seconds: float
    """Without anything to decode, or until an answer that is due is there."""


@dataclass(frozen=True)
class Tools:
    """Times of tools, and of the entry of their answers."""

    seconds: float
    delay_steps: int | None
    """None: order Fastest."""


def run_conversations(
    conversations: Sequence[Conversation], capacity: int, tools: Tools, step_seconds: StepSeconds
) -> ConversationRun:
    """Run conversations to their ends.

    Args:
        conversations: in the order in which they begin.
        capacity: most that are live at once.
        tools: times.
        step_seconds: of the engine.
    """
    queue = deque(range(len(conversations)))
    turns = [deque(turn for turn in conversation) for conversation in conversations]
    # Rows by the step at which their turn ends; rows that wait, by the step at which they are due.
    running: list[tuple[int, int]] = []
    waiting: list[tuple[int, int, float]] = []
    step = live = 0
    clock = waited = 0.0

    def wait(row: int, ready: float, delay: int) -> None:
        heapq.heappush(waiting, (step + delay, row, ready))

    while queue or running or waiting:
        while queue and live < capacity:
            live += 1
            wait(queue.popleft(), clock, (tools.delay_steps or 0) if running else 0)
        if running:
            clock += step_seconds(len(running))
            while running and running[0][0] == step + 1:
                _, row = heapq.heappop(running)
                if turns[row]:
                    wait(row, clock + tools.seconds, tools.delay_steps or 0)
                else:
                    live -= 1
            step += 1
        if not waiting:
            continue
        if tools.delay_steps is None:
            until = clock if running else max(clock, min(ready for *_, ready in waiting))
            begun = [one for one in waiting if one[2] <= until]
        else:
            step = step if running else max(step, waiting[0][0])
            begun = [one for one in waiting if one[0] <= step]
            until = max([clock, *(ready for *_, ready in begun)])
        waited, clock = waited + until - clock, until
        waiting = [one for one in waiting if one not in begun]
        heapq.heapify(waiting)
        for _, row, _ in begun:
            heapq.heappush(running, (step + turns[row].popleft(), row))
    return ConversationRun(clock, waited)


def random_conversations(
    draw: random.Random,
    number: int,
    response: Lengths,
    gaps: float,
    max_gaps: int,
    sampled_share: float,
) -> list[Conversation]:
    """Conversations whose turns end at random tokens of their responses.

    Args:
        draw: random numbers.
        number: of conversations.
        response: lengths of responses, answers included.
        gaps: mean number of gaps between turns in a response of mean length.
        max_gaps: limit of gaps.
        sampled_share: share of the tokens that are sampled.
    """
    conversations: list[Conversation] = []
    for _ in range(number):
        left = response.exceeded_by(1 - draw.random())
        turns: list[float] = []
        while len(turns) < max_gaps:
            length = draw.expovariate(gaps / response.mean)
            if length >= left:
                break
            turns.append(length)
            left -= length
        conversations.append([max(1, round(sampled_share * turn)) for turn in (*turns, left)])
    return conversations
