"""Seconds of a GENERATE call whose last responses are finished apart: until few are left, and then.

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
from functools import cached_property

from rlhf_api.plan import Mesh
from rlhf_api.plan_fusion import CHECK_STEPS
from rlhf_flow.planning.generation_memory import GenerationCall, GenerationLoad
from rlhf_flow.planning.seconds.call_seconds import CallSeconds, in_turn
from rlhf_flow.planning.seconds.decoding import Engine, decode_seconds
from rlhf_flow.planning.seconds.generation import engine_of, prefill_seconds, sequences_at_once
from rlhf_flow.planning.seconds.layers import LayerSeconds
from rlhf_flow.planning.seconds.lengths import Lengths
from rlhf_flow.planning.seconds.links import Links


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
