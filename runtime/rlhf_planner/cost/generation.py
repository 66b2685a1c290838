"""How long a generation engine decodes: a step for each token, while ever fewer sequences run.

An engine of t ranks takes for a step with a sequences that hold C tokens in all

    L decode(block) + decode(head) + the host's work
        + (2 L + 1) all-reduces of a h numbers + an all-gather of a V logits

Of n sequences at most c run at once: as many as the cache and the engine's limit hold. Where n > c,
a waiting one takes the place of each that ends. Until none waits that takes (n - c) mean / c steps,
in which c run with P + E[X^2] / (2 mean) tokens each (P of the prompt, the rest the mean age of a
renewal process). The last c then run out: after t steps c S(t) are left, with P + t tokens each,
but one at least until the longest ends. That one is the longest of all engines, as calls end when
all have. For equal lengths the first part is n/c - 1 whole waves.

Steps that run out are summed up by Gauss and Legendre's rule of six points, within 0.6 % of the sum
over each step.

Seconds of a GENERATE call: prompts once each, then tokens one by one (decoding.py).

Prompts run through the model in passes of up to 8,192 tokens (`BATCHED_TOKENS`). Several responses
to a prompt share it, as engines keep keys and values of equal prompts. Each of the call's engines
gets whole prompts, equally many or one more; that with most of them counts.

A cache of B bytes on a rank holds B / (bytes of a token's keys and values) tokens. Sequences that
begin together hold most of it when c S(t) (P + t) is largest; where others follow, P + E[X^2] /
(2 mean) each. So many run at once that neither is more than the cache has, but one in any case.
Prompts are counted once for each response here, although responses share their memory, too.

Seconds of a GENERATE call whose last responses are finished apart: until few are left, and then.

Until R of the n responses under way are left it is the decoding of decoding.py, ended early: they
are so few after t* steps, with S(t*) = R / n, and engines notice it after half of their
`CHECK_STEPS` more, on average. Each of these looks is an all-reduce of all engines' ranks.

What is left then, n S(t) responses with P + t tokens in the cache each, K of E engines finish. It
is generation again, of prompts of P + t tokens and of what is still to come of the responses: rows
that do not fit into the caches at once wait. A share 1 - K/E of them comes from other engines and
is prefilled anew, with all of its tokens. With K = E both parts take what the call takes otherwise,
and the looks.

Source: RLHFuse (arXiv 2409.13221), inter-stage fusion.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import inf

from rlhf_api.plan import Mesh
from rlhf_api.plan_fusion import CHECK_STEPS
from rlhf_planner.cost.collectives import Group, Links
from rlhf_planner.cost.layers import LayerCut, LayerKind, LayerSeconds, LayerTime
from rlhf_planner.cost.micro_batches import Lengths
from rlhf_planner.cost.seconds import CallSeconds, in_turn
from rlhf_planner.memory.generation import GenerationCall, GenerationLoad, kv_token_bytes
from rlhf_sizing.limits import BATCHED_TOKENS
from rlhf_sizing.shape import DecoderShape

_HALF = (
    (0.2386191860831969, 0.4679139345726910),
    (0.6612093864662645, 0.3607615730481386),
    (0.9324695142031521, 0.1713244923791704),
)
"""Distances from the middle of an interval from -1 to 1, and their weights."""
QUADRATURE = tuple(
    ((1 + sign * distance) / 2, weight / 2) for sign in (-1, 1) for distance, weight in _HALF
)
"""Places between 0 and 1 and the weights of what is found there."""


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
        """An engine.

        Args:
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
        """A step of so many sequences, with so many tokens in the cache."""
        computing = self._layers.decode(LayerKind.HEAD, self._cut, sequences, 0.0).plus(
            self._layers.decode(LayerKind.BLOCK, self._cut, sequences, cached_tokens),
            self._shape.num_layers,
        )
        return self._step(computing, self._decoding_communication, sequences)

    def prefill(self, tokens: float, pairs: float) -> CallSeconds:
        """A step of so many tokens of prompts, of which so many pairs look at each other."""
        computing = self._layers.prefill(LayerKind.EMBEDDING, self._cut, tokens, 0.0).plus(
            self._layers.prefill(LayerKind.BLOCK, self._cut, tokens, pairs),
            self._shape.num_layers,
        )
        return self._step(computing, self._reductions, tokens)

    def _step(
        self, computing: LayerTime, communication: tuple[float, float], tokens: float
    ) -> CallSeconds:
        always, each = communication
        return CallSeconds(
            compute=computing.compute,
            memory=computing.memory,
            launch=computing.launch + self._links.hardware.engine_step_seconds,
            tensor_communication=always + tokens * each,
        )

    @cached_property
    def _reductions(self) -> tuple[float, float]:
        """Seconds of all all-reduces of a step: whatever its tokens, and for each of them."""
        number = 2 * self._shape.num_layers + 1
        always = number * self._links.all_reduce_seconds(0.0, self._group)
        vector = self._shape.hidden_size * self._number_bytes
        return always, number * self._links.all_reduce_seconds(vector, self._group) - always

    @cached_property
    def _decoding_communication(self) -> tuple[float, float]:
        """The same with the logits that are gathered."""
        logits = self._shape.vocab_size * self._number_bytes
        gather = self._links.all_gather_seconds(0.0, self._group)
        each = self._links.all_gather_seconds(logits, self._group) - gather
        always, reduced = self._reductions
        return always + gather, reduced + each


def decode_seconds(
    engine: Engine,
    sequences: float,
    at_once: float,
    under_way: float,
    prompt: Lengths,
    response: Lengths,
    until_tokens: float = inf,
) -> CallSeconds:
    """All steps of the engine that takes longest.

    Args:
        engine: one of them.
        sequences: that it is given.
        at_once: of which so many run at once, at most.
        under_way: sequences of all engines when none waits any more, of which the longest counts.
        prompt: lengths of prompts.
        response: lengths of responses.
        until_tokens: of a response of those that run out, where steps end before the longest does.
    """
    running = min(sequences, at_once)
    longest = min(until_tokens, response.expected_maximum(under_way))
    steps: list[tuple[float, CallSeconds]] = []
    for place, weight in QUADRATURE:
        at = longest * place
        left = max(1.0, response.expected_running(running, at))
        steps.append((weight * longest, engine.decode(left, left * (prompt.mean + at))))
    if sequences > running:
        held = running * (prompt.mean + response.mean_age)
        waiting = (sequences - running) * response.mean / running
        steps.append((waiting, engine.decode(running, held)))
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
    """A call that generates.

    Args:
        load: what is asked of the role's engines: its model, and the sequences that one takes at
            once.
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
    under_way = min(float(call.rows), min(sequences, at_once) * engines.data)
    decoding = decode_seconds(engine, sequences, at_once, under_way, prompt, response)
    prefill = prefill_seconds(engine, sequences / call.samples, prompt)
    return in_turn([prefill, decoding])


def sequences_at_once(
    load: GenerationLoad, tensor: int, kv_cache_bytes: int, prompt: Lengths, response: Lengths
) -> float:
    """Sequences that an engine decodes at once, on average; arguments as of `generate_seconds`."""
    tokens = kv_cache_bytes / kv_token_bytes(load, tensor)
    together = response.expected_peak(prompt.mean)
    in_turn = prompt.mean + response.mean_age
    held = tokens / max(together, in_turn)
    return max(1.0, min(float(load.max_concurrent_sequences), held))


@lru_cache(maxsize=1024)
def engine_of(
    shape: DecoderShape, number_bytes: int, layers: LayerSeconds, links: Links, group: Group
) -> Engine:
    """An engine; answers are kept, with what it has computed."""
    return Engine(shape, number_bytes, layers, links, group)


def prefill_seconds(engine: Engine, prompts: float, prompt: Lengths) -> CallSeconds:
    """All passes over so many prompts; 0 or more."""
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
    """What is asked of the role's engines."""
    call: GenerationCall
    """Its prompts, and the responses to each."""
    engines: Mesh
    """All engines."""
    finish: Mesh
    """Those that take what is left."""
    threshold_rows: int
    """Responses that are left, at most, when they do."""
    kv_cache_bytes: int
    """Of a cache, on each device."""
    prompt: Lengths
    """Lengths of prompts."""
    response: Lengths
    """Lengths of responses."""
    layers: LayerSeconds
    """Of the model on the engines' devices."""
    links: Links
    """Of their pool."""

    @cached_property
    def rows_at_once(self) -> float:
        """Responses under way when none waits any more, over all engines."""
        return min(float(self.call.rows), self._running * self.engines.data)

    @cached_property
    def tokens(self) -> float:
        """t: what there is of each response that is left."""
        share = min(1.0, self.threshold_rows / self.rows_at_once)
        noticed = self.response.exceeded_by(share) + CHECK_STEPS / 2
        return min(noticed, self.response.expected_maximum(self.rows_at_once))

    @property
    def rows_left(self) -> float:
        """Over all engines, on average; 0 where the last one ends before anybody notices."""
        return self.rows_at_once * self.response.survival(self.tokens)

    @property
    def left(self) -> Lengths:
        """What is still to come of them, where rows are left."""
        return self.response.after(self.tokens)

    @cached_property
    def generate_seconds(self) -> CallSeconds:
        """Until few are left."""
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
        return in_turn([prefill, decoding, self._looks])

    @cached_property
    def finish_seconds(self) -> CallSeconds:
        """From then on."""
        rows, num_engines = self.rows_left, self.finish.data
        if rows <= 0:
            return CallSeconds()
        begun = Lengths(self.prompt.mean + self.tokens, self.prompt.mean + self.tokens)
        at_once = sequences_at_once(
            self.load, self.finish.tensor, self.kv_cache_bytes, begun, self.left
        )
        busy = min(num_engines, math.ceil(rows))
        each = max(1.0, self._share_of(num_engines))
        under_way = max(1.0, min(rows, at_once * busy))
        decoding = decode_seconds(self._engine, each, at_once, under_way, begun, self.left)
        moved = rows / num_engines * (1 - num_engines / self.engines.data)
        return in_turn([prefill_seconds(self._engine, moved, begun), decoding])

    def _share_of(self, num_engines: int) -> float:
        """Rows left of the engine with most of them: where all go on nothing moves, and those that
        were given more have more."""
        if num_engines == self.engines.data:
            return self._running * self.response.survival(self.tokens)
        return self.rows_left / num_engines

    @property
    def _looks(self) -> CallSeconds:
        """Looks at what is left: a number of each rank, summed up."""
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
        """Of an engine, when none waits any more."""
        return min(float(self._sequences), self._at_once)
