"""A generation engine: times of its steps, and of its passes over prompts.

Decoding. An engine of t ranks takes for a step with a sequences that hold C tokens in all

    L decode(block) + decode(head) + the host's work
        + (2 L + 1) all-reduces of a h numbers + an all-gather of a V logits

Prefill. Prompts run through the model in passes of up to 8,192 tokens (`BATCHED_TOKENS`).
"""

from __future__ import annotations

import math
from functools import cached_property, lru_cache

from rlhf_planner.cost.collectives import Group, Links
from rlhf_planner.cost.layers import LayerCut, LayerKind, LayerSeconds, LayerTime
from rlhf_planner.cost.micro_batches import Lengths
from rlhf_planner.cost.seconds import CallSeconds
from rlhf_sizing.limits import BATCHED_TOKENS
from rlhf_sizing.shape import DecoderShape


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
