"""Times of GENERATE calls: prefill, decoding, and calls whose last responses are finished
separately.

Steps and passes of an engine are those of engine.py, conversations those of conversations.py.

Decoding. Of n sequences at most c run at once: as many as the cache and the engine's limit hold.
If n > c, a waiting one starts when one ends. Until none waits that takes (n - c) mean / c steps, in
which c run with P + E[X^2] / (2 mean) tokens each (P of the prompt, the rest the mean age of a
renewal process). Then the last c run out: after t steps c S(t) are left, with P + t tokens each,
but at least one until the longest ends. For equal lengths the first part is n/c - 1 full waves.

Prefill. Each of the call's engines gets full prompts, the same number or one more; the one with the
most counts.

Cache. B bytes on a rank hold B / (bytes of a token's keys and values) tokens. Sequences that begin
together need the most of it when c S(t) (P + t) is largest; if others follow, P + E[X^2] / (2 mean)
each. So many run at once that neither exceeds the cache, but at least one.

Separate finish. Until R of the n running responses are left it is the decoding above, ended early:
that many are left after t* steps, with S(t*) = R / n. The n S(t) responses that are left at the
switch, with P + t tokens in the cache each, are finished by K of E engines. That is generation
again, with prompts of P + t tokens and the rest of the responses: rows that do not fit into the
caches at once wait. With K = E both parts take the time of the undivided call, plus the checks.

Source: RLHFuse (arXiv 2409.13221), inter-stage fusion.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import inf

from rlhf_api.mesh import Mesh
from rlhf_api.plan_fusion import CHECK_STEPS
from rlhf_planner.cost.collectives import Links
from rlhf_planner.cost.conversations import (
    ONE_TURN,
    ResponseTurns,
    answer_seconds,
    live_at_once,
    live_per_engine,
    turns_of,
)
from rlhf_planner.cost.engine import Engine, engine_of, prefill_seconds
from rlhf_planner.cost.layers import LayerSeconds
from rlhf_planner.cost.micro_batches import Lengths
from rlhf_planner.cost.seconds import CallSeconds, in_turn
from rlhf_planner.memory.generation import GenerationCall, GenerationLoad, kv_token_bytes
from rlhf_planner.problem.problem import ConversationWorkload

# Positions in [-1, 1] relative to the middle of an interval, and their weights.
_HALF = (
    (0.2386191860831969, 0.4679139345726910),
    (0.6612093864662645, 0.3607615730481386),
    (0.9324695142031521, 0.1713244923791704),
)
# Positions in [0, 1] and the weights of values there: the Gauss-Legendre rule of six points, within
# 0.6 % of the sum over each step.
QUADRATURE = tuple(
    ((1 + sign * distance) / 2, weight / 2) for sign in (-1, 1) for distance, weight in _HALF
)


def decode_seconds(
    engine: Engine,
    sequences: float,
    at_once: float,
    num_running: float,
    prompt: Lengths,
    response: Lengths,
    until_tokens: float = inf,
    turns: ResponseTurns = ONE_TURN,
) -> CallSeconds:
    """Seconds of all steps of the slowest engine, and of its waits for tools.

    Args:
        engine: one of them.
        sequences: its sequences.
        at_once: limit of sequences that it runs at once.
        num_running: sequences of all engines when none waits any more; the longest of them counts.
        prompt: lengths of prompts.
        response: lengths of responses.
        until_tokens: tokens of a response at which steps end, if before the longest ends.
        turns: of the responses.
    """
    running = min(sequences, at_once)
    # A call ends when all engines have ended, so the longest response of all of them counts.
    longest = min(until_tokens, response.expected_maximum(num_running))
    last_gap = min(longest, turns.last_gap_tokens)
    steps: list[tuple[float, CallSeconds]] = []
    for start, end, has_gaps in ((0.0, last_gap, True), (last_gap, longest, False)):
        for position, weight in QUADRATURE if start < end else ():
            at = start + (end - start) * position
            left, context = max(1.0, response.expected_running(running, at)), prompt.mean + at
            token = turns.token_seconds(engine.decode, left, context, has_gaps=has_gaps)
            steps.append((weight * (end - start), token))
    context = prompt.mean + longest
    if extra := turns.extra_tokens(engine.decode, context, longest):
        steps.append((extra, turns.token_seconds(engine.decode, 1.0, context)))
    if sequences > running:
        # Each waiting sequence starts when another ends, so `running` stay busy.
        waiting = (sequences - running) * response.mean / running
        context = prompt.mean + response.mean_age
        token = turns.of_followers().token_seconds(engine.decode, running, context)
        steps.append((waiting, token))
    compute = memory = launch = tensor = tools = 0.0
    for number, step in steps:
        compute += number * step.compute
        memory += number * step.memory
        launch += number * step.launch
        tensor += number * step.tensor_communication
        tools += number * step.tools
    return CallSeconds(compute, memory, launch, tensor, tools=tools)


@lru_cache(maxsize=16384)
def generate_seconds(
    load: GenerationLoad,
    call: GenerationCall,
    engines: Mesh,
    kv_cache_bytes: int,
    prompt: Lengths,
    response: Lengths,
    layers: LayerSeconds,
    links: Links,
    conversations: ConversationWorkload | None = None,
) -> CallSeconds:
    """Seconds of a call that generates.

    Args:
        load: on the role's engines: its model, and the sequences that one runs at once.
        call: its prompts, and the responses to each.
        engines: their ranks, one engine for each replica.
        kv_cache_bytes: of a cache, on each device.
        prompt: lengths of prompts.
        response: lengths of responses.
        layers: of the model on the engines' devices.
        links: of their pool.
        conversations: that the responses are. None: responses have one turn.
    """
    engine = engine_of(load.shape, load.number_bytes, layers, links, links.tensor_group(engines))
    sequences = call.sequences(engines.data)
    turns = turns_of(conversations, response, call.rows, engines, links.devices_per_node)
    at_once = sequences_at_once(load, engines.tensor, kv_cache_bytes, prompt, response)
    if conversations is not None:
        at_once = live_at_once(
            turns,
            engine,
            live_per_engine(conversations, engines, links.devices_per_node),
            load.max_concurrent_sequences,
            cached_sequences(load, engines.tensor, kv_cache_bytes, prompt, response),
            prompt.mean + response.mean_age,
        )
    num_running = min(float(call.rows), min(sequences, at_once) * engines.data)
    decoding = decode_seconds(
        engine, sequences, at_once, num_running, prompt, response, turns=turns
    )
    # Engines keep keys and values of equal prompts, so responses to one prompt share its prefill.
    prefill = prefill_seconds(engine, sequences / call.samples, prompt)
    answers = answer_seconds(engine, sequences, turns.sampled_share, prompt, response)
    return in_turn([prefill, answers, decoding])


def sequences_at_once(
    load: GenerationLoad, tensor: int, kv_cache_bytes: int, prompt: Lengths, response: Lengths
) -> float:
    """Sequences that an engine decodes at once, on average; arguments as for `generate_seconds`."""
    fitting = cached_sequences(load, tensor, kv_cache_bytes, prompt, response)
    return max(1.0, min(float(load.max_concurrent_sequences), fitting))


def cached_sequences(
    load: GenerationLoad, tensor: int, kv_cache_bytes: int, prompt: Lengths, response: Lengths
) -> float:
    """Sequences that a cache holds, on average; arguments as for `generate_seconds`."""
    # Prompts count once per response, although responses share their memory.
    tokens = kv_cache_bytes / kv_token_bytes(load, tensor)
    # All sequences begin together at first; later each start follows an end.
    together = response.expected_peak(prompt.mean)
    in_turn = prompt.mean + response.mean_age
    return tokens / max(together, in_turn)


@dataclass(frozen=True)
class SplitGeneration:
    """A call that generates, in two parts."""

    load: GenerationLoad
    """The load on the role's engines."""
    call: GenerationCall
    """Its prompts, and the responses to each."""
    engines: Mesh
    finish: Mesh
    """The engines that finish the rest."""
    threshold_rows: int
    """Limit of unfinished responses when these start."""
    kv_cache_bytes: int
    """Cache on each device."""
    prompt: Lengths
    response: Lengths
    layers: LayerSeconds
    """Layers of the model on the engines' devices."""
    links: Links
    """Links of their pool."""

    @cached_property
    def rows_at_once(self) -> float:
        """Running responses of all engines when none waits any more."""
        return min(float(self.call.rows), self._running * self.engines.data)

    @cached_property
    def tokens(self) -> float:
        """t: tokens of each unfinished response at the switch."""
        share = min(1.0, self.threshold_rows / self.rows_at_once)
        # Engines notice the switch at their next check: half of `CHECK_STEPS` later, on average.
        noticed = self.response.exceeded_by(share) + CHECK_STEPS / 2
        return min(noticed, self.response.expected_maximum(self.rows_at_once))

    @property
    def rows_left(self) -> float:
        """Mean of the unfinished responses of all engines; 0 if all end before a check."""
        return self.rows_at_once * self.response.survival(self.tokens)

    @property
    def left(self) -> Lengths:
        """Remaining lengths of the unfinished responses."""
        return self.response.after(self.tokens)

    @cached_property
    def generate_seconds(self) -> CallSeconds:
        """Seconds of the first part."""
        sequences = self._sequences
        decoding = decode_seconds(
            self._engine,
            sequences,
            self._at_once,
            self.rows_at_once,
            self.prompt,
            self.response,
            self.tokens,
        )
        prefill = prefill_seconds(self._engine, sequences / self.call.samples, self.prompt)
        return in_turn([prefill, decoding, self._checks])

    @cached_property
    def finish_seconds(self) -> CallSeconds:
        """Seconds of the second part."""
        rows, num_engines = self.rows_left, self.finish.data
        if rows <= 0:
            return CallSeconds()
        # Generation again, with the tokens so far as prompts of one length.
        begun = Lengths(self.prompt.mean + self.tokens, self.prompt.mean + self.tokens)
        at_once = sequences_at_once(
            self.load, self.finish.tensor, self.kv_cache_bytes, begun, self.left
        )
        busy = min(num_engines, math.ceil(rows))
        rows_per_engine = max(1.0, self._share_of(num_engines))
        num_running = max(1.0, min(rows, at_once * busy))
        decoding = decode_seconds(
            self._engine, rows_per_engine, at_once, num_running, begun, self.left
        )
        # Rows from engines that do not finish have no cache here, so they are prefilled again.
        moved = rows / num_engines * (1 - num_engines / self.engines.data)
        return in_turn([prefill_seconds(self._engine, moved, begun), decoding])

    def _share_of(self, num_engines: int) -> float:
        """Rows of the fullest finishing engine."""
        # If all engines finish nothing moves, so rows stay as uneven as the prompts.
        if num_engines == self.engines.data:
            return self._running * self.response.survival(self.tokens)
        return self.rows_left / num_engines

    @property
    def _checks(self) -> CallSeconds:
        """Seconds of the checks of the number of unfinished responses."""
        # A check sums up a number of 8 bytes over the ranks of all engines.
        first_ones = max(0.0, self._sequences - self._running) * self.response.mean / self._running
        number = (first_ones + self.tokens) / CHECK_STEPS
        mesh = self.engines
        group = self.links.group(mesh.first_rank, mesh.num_devices, 1)
        return CallSeconds(data_communication=number * self.links.all_reduce_seconds(8.0, group))

    @cached_property
    def _engine(self) -> Engine:
        group = self.links.tensor_group(self.engines)
        return engine_of(self.load.shape, self.load.number_bytes, self.layers, self.links, group)

    @property
    def _sequences(self) -> int:
        return self.call.sequences(self.engines.data)

    @cached_property
    def _at_once(self) -> float:
        return sequences_at_once(
            self.load, self.engines.tensor, self.kv_cache_bytes, self.prompt, self.response
        )

    @property
    def _running(self) -> float:
        """Running responses of one engine when none waits any more."""
        return min(float(self._sequences), self._at_once)
