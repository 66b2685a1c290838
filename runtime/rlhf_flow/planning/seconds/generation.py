"""Seconds of a GENERATE call: prompts once each, then tokens one by one (decoding.py).

Prompts run through the model in passes of up to 8,192 tokens (`BATCHED_TOKENS`). Several responses
to a prompt share it, as engines keep keys and values of equal prompts. Each of the call's engines
gets whole prompts, equally many or one more; that with most of them counts.

A cache of B bytes on a rank holds B / (bytes of a token's keys and values) tokens. Sequences that
begin together hold most of it when c S(t) (P + t) is largest; where others follow, P + E[X^2] /
(2 mean) each. So many run at once that neither is more than the cache has, but one in any case.
Prompts are counted once for each response here, although responses share their memory, too.
"""

from __future__ import annotations

import math
from functools import lru_cache

from rlhf_api.plan import Mesh
from rlhf_flow.planning.generation_memory import (
    BATCHED_TOKENS,
    GenerationCall,
    GenerationLoad,
    kv_token_bytes,
)
from rlhf_flow.planning.seconds.call_seconds import CallSeconds, in_turn
from rlhf_flow.planning.seconds.decoding import Engine, decode_seconds
from rlhf_flow.planning.seconds.layers import LayerSeconds
from rlhf_flow.planning.seconds.lengths import Lengths
from rlhf_flow.planning.seconds.links import Group, Links
from rlhf_flow.planning.shapes import DecoderShape


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
