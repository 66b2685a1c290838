"""A generation engine without a model: tokens are drawn from a sequence's seed, prompt and weights.

It passes the contract of generation engines, so that what stands on engines can be tried in
milliseconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from rlhf_api.spec.stopping import StopReason
from rlhf_runtime.engines.generation import NewSequence, SequenceEnded, T
from rlhf_runtime.errors import StaleWeights
from rlhf_runtime.reshard.slices import TensorSlice
from rlhf_runtime.reshard.views import View, Views

STOP, VOCABULARY = 0, 16


@dataclass
class _Running:
    sequence: NewSequence
    draw: np.random.Generator
    tokens: list[int] = field(default_factory=list)

    def ended(self, reason: StopReason | None) -> SequenceEnded:
        log_probs = np.full(len(self.tokens), -np.log(VOCABULARY), dtype=np.float32)
        return SequenceEnded(
            self.sequence.id, np.array(self.tokens, dtype=np.int32), log_probs, reason
        )


class ScriptedEngine:
    """One weight; every step draws one token of each running sequence. Greedy is seed 0."""

    def __init__(self) -> None:
        self._weights = torch.zeros(1)
        self._running: dict[int, _Running] = {}
        self._version: int | None = None
        self.num_steps = 0
        self.added: list[tuple[int, list[list[int]]]] = []
        """Number of steps so far, and prompts, of each call of `add`."""
        self.effects: list[str] = []
        """What happened to the cache, in order."""

    @property
    def version(self) -> int | None:
        return self._version

    @property
    def has_work(self) -> bool:
        return bool(self._running)

    def add(self, sequences: Sequence[NewSequence], *, keeps_prefixes: bool = False) -> None:
        for sequence in sequences:
            if sequence.weight_version != self._version:
                present = "none" if self._version is None else f"version {self._version}"
                raise StaleWeights(f"got {present}, allowed version {sequence.weight_version}")
        if not self._running and not keeps_prefixes:
            self.effects.append("forget prompts")
        self.added.append((self.num_steps, [one.prompt.tolist() for one in sequences]))
        for sequence in sequences:
            seed = sequence.seed if sequence.temperature else 0
            content = [seed, int(self._weights[0]), *sequence.prompt.tolist()]
            self._running[sequence.id] = _Running(sequence, np.random.default_rng(content))

    def step(self) -> list[SequenceEnded]:
        ended = []
        self.num_steps += 1
        for running in list(self._running.values()):
            running.tokens.append(int(running.draw.integers(VOCABULARY)))
            if running.tokens[-1] == STOP:
                ended.append(running.ended(StopReason.END_TOKEN))
            elif len(running.tokens) == running.sequence.max_tokens:
                ended.append(running.ended(StopReason.TOKEN_LIMIT))
        for end in ended:
            del self._running[end.id]
        return ended

    def abort(self, ids: Sequence[int]) -> list[SequenceEnded]:
        return [self._running.pop(number).ended(None) for number in ids]

    def share(self, value: T) -> T:
        return value

    def views(self) -> Views:
        return {"weight": [View(self._weights, TensorSlice.full((1,)))]}

    def publish(self, version: int) -> None:
        self._version = version

    def restore(self) -> None:
        self._version = None

    def release(self) -> None:
        self._version = None
        self._weights.fill_(99)

    def close(self) -> None: ...
