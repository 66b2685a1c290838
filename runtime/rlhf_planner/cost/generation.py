"""Times of GENERATE calls: prefill, decoding, and calls whose last responses are finished
separately.

Decoding. An engine of t ranks takes for a step with a sequences that hold C tokens in all

    L decode(block) + decode(head) + the host's work
        + (2 L + 1) all-reduces of a h numbers + an all-gather of a V logits

Of n sequences at most c run at once: as many as the cache and the engine's limit hold. If n > c, a
waiting one starts when one ends. Until none waits that takes (n - c) mean / c steps, in which c run
with P + E[X^2] / (2 mean) tokens each (P of the prompt, the rest the mean age of a renewal
process). Then the last c run out: after t steps c S(t) are left, with P + t tokens each, but at
least one until the longest ends. For equal lengths the first part is n/c - 1 full waves.

Prefill. Prompts run through the model in passes of up to 8,192 tokens (`BATCHED_TOKENS`). Each of
the call's engines gets full prompts, the same number or one more; the one with the most counts.

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
from rlhf_planner.cost.collectives import Group, Links
from rlhf_planner.cost.layers import LayerCut, LayerKind, LayerSeconds, LayerTime
from rlhf_planner.cost.micro_batches import Lengths
from rlhf_planner.cost.seconds import CallSeconds, in_turn
from rlhf_planner.memory.generation import GenerationCall, GenerationLoad, kv_token_bytes
from rlhf_sizing.limits import BATCHED_TOKENS
from rlhf_sizing.shape import DecoderShape

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


class Engine:
    """A generation engine."""

    def __init__(
        self,
        shape: DecoderShape,
        number_bytes: int,
        layers: LayerSeconds,
        links: Links,
        group: Group,
    ) -> None:
        """Args:
        shape: of its model.
        number_bytes: of a number in the computation.
        layers: of its model.
        links: of its pool.
        group: its ranks.
        """
        self._shape, self._number_bytes = shape, number_bytes
        self._layers, self._links, self._group = layers, links, group
        self._cut = LayerCut(group.size)

    def decode(self, sequences: float, cached_tokens: float) -> CallSeconds:
        """Seconds of a step with a number of sequences, and tokens in the cache."""
        computing = self._layers.decode(LayerKind.HEAD, self._cut, sequences, 0.0).plus(
            self._layers.decode(LayerKind.BLOCK, self._cut, sequences, cached_tokens),
            self._shape.num_layers,
        )
        return self._step(computing, self._decoding_communication, sequences, sequences)

    def prefill(self, tokens: float, pairs: float) -> CallSeconds:
        """Seconds of a step with a number of tokens of prompts, and attention pairs of these."""
        computing = self._layers.prefill(LayerKind.EMBEDDING, self._cut, tokens, 0.0).plus(
            self._layers.prefill(LayerKind.BLOCK, self._cut, tokens, pairs),
            self._shape.num_layers,
        )
        # A pass has few prompts beside its tokens: their host time is that of any step.
        return self._step(computing, self._reductions, tokens, 0.0)

    def _step(
        self,
        computing: LayerTime,
        communication: tuple[float, float],
        tokens: float,
        sequences: float,
    ) -> CallSeconds:
        constant, per_token = communication
        hardware = self._links.hardware
        host = hardware.engine_step_seconds + sequences * hardware.engine_sequence_seconds
        return CallSeconds(
            compute=computing.compute,
            memory=computing.memory,
            launch=computing.launch + host,
            tensor_communication=constant + tokens * per_token,
        )

    @cached_property
    def _reductions(self) -> tuple[float, float]:
        """Seconds of all all-reduces of a step: a constant, and per token."""
        # Two per block, after attention and feed-forward, and one of the embedding.
        number = 2 * self._shape.num_layers + 1
        always = number * self._links.all_reduce_seconds(0.0, self._group)
        vector = self._shape.hidden_size * self._number_bytes
        return always, number * self._links.all_reduce_seconds(vector, self._group) - always

    @cached_property
    def _decoding_communication(self) -> tuple[float, float]:
        """Seconds of `_reductions` and of gathering the logits: a constant, and per token."""
        logits = self._shape.vocab_size * self._number_bytes
        gather = self._links.all_gather_seconds(0.0, self._group)
        per_token = self._links.all_gather_seconds(logits, self._group) - gather
        constant, reduced = self._reductions
        return constant + gather, reduced + per_token


def decode_seconds(
    engine: Engine,
    sequences: float,
    at_once: float,
    num_running: float,
    prompt: Lengths,
    response: Lengths,
    until_tokens: float = inf,
) -> CallSeconds:
    """Seconds of all steps of the slowest engine.

    Args:
        engine: one of them.
        sequences: its sequences.
        at_once: limit of sequences that it runs at once.
        num_running: sequences of all engines when none waits any more; the longest of them counts.
        prompt: lengths of prompts.
        response: lengths of responses.
        until_tokens: tokens of a response at which steps end, if before the longest ends.
    """
    running = min(sequences, at_once)
    # A call ends when all engines have ended, so the longest response of all of them counts.
    longest = min(until_tokens, response.expected_maximum(num_running))
    steps: list[tuple[float, CallSeconds]] = []
    for position, weight in QUADRATURE:
        at = longest * position
        left = max(1.0, response.expected_running(running, at))
        steps.append((weight * longest, engine.decode(left, left * (prompt.mean + at))))
    if sequences > running:
        cached_tokens = running * (prompt.mean + response.mean_age)
        # Each waiting sequence starts when another ends, so `running` stay busy.
        waiting = (sequences - running) * response.mean / running
        steps.append((waiting, engine.decode(running, cached_tokens)))
    compute = memory = launch = tensor = 0.0
    for number, step in steps:
        compute += number * step.compute
        memory += number * step.memory
        launch += number * step.launch
        tensor += number * step.tensor_communication
    return CallSeconds(compute, memory, launch, tensor)


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
    """
    engine = engine_of(load.shape, load.number_bytes, layers, links, links.tensor_group(engines))
    sequences = call.sequences(engines.data)
    at_once = sequences_at_once(load, engines.tensor, kv_cache_bytes, prompt, response)
    num_running = min(float(call.rows), min(sequences, at_once) * engines.data)
    decoding = decode_seconds(engine, sequences, at_once, num_running, prompt, response)
    prefill = prefill_seconds(engine, sequences / call.samples, prompt)
    # Engines keep keys and values of equal prompts, so responses to one prompt share its prefill.
    return in_turn([prefill, decoding])


def sequences_at_once(
    load: GenerationLoad, tensor: int, kv_cache_bytes: int, prompt: Lengths, response: Lengths
) -> float:
    """Sequences that an engine decodes at once, on average; arguments as for `generate_seconds`."""
    # Prompts count once per response, although responses share their memory.
    tokens = kv_cache_bytes / kv_token_bytes(load, tensor)
    # All sequences begin together at first; later each start follows an end.
    together = response.expected_peak(prompt.mean)
    in_turn = prompt.mean + response.mean_age
    fitting = tokens / max(together, in_turn)
    return max(1.0, min(float(load.max_concurrent_sequences), fitting))


@lru_cache(maxsize=1024)
def engine_of(
    shape: DecoderShape, number_bytes: int, layers: LayerSeconds, links: Links, group: Group
) -> Engine:
    """An engine; cached, with the results that it has computed."""
    return Engine(shape, number_bytes, layers, links, group)


def prefill_seconds(engine: Engine, prompts: float, prompt: Lengths) -> CallSeconds:
    """Seconds of all passes over a number of prompts; 0 or more."""
    if not prompts:
        return CallSeconds()
    tokens = prompts * prompt.mean
    passes = math.ceil(tokens / BATCHED_TOKENS)
    pairs = prompts * prompt.mean_square / 2
    return engine.prefill(tokens / passes, pairs / passes).times(passes)


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
