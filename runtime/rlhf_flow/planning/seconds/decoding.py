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
"""

from __future__ import annotations

from functools import cached_property
from math import inf

from rlhf_flow.planning.seconds.call_seconds import CallSeconds
from rlhf_flow.planning.seconds.layers import LayerCut, LayerKind, LayerSeconds, LayerTime
from rlhf_flow.planning.seconds.lengths import Lengths
from rlhf_flow.planning.seconds.links import Group, Links
from rlhf_flow.planning.shapes import DecoderShape

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
