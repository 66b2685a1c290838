"""The interface between roles and generation engines.

An engine generates sequences step by step; the rows of one call are in `ResponseBatch`. All ranks
of a tensor-parallel engine make the same calls in the same order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from rlhf_api.spec.stopping import StopReason
from rlhf_api.spec.truncation import Truncation
from rlhf_runtime.data.stop_texts import StopTexts
from rlhf_runtime.reshard.views import Views

T = TypeVar("T")

Groups = tuple[tuple[int, ...], ...]
"""Ascending ranks of each engine; a rank's index in its group is its part of the model."""


@dataclass(frozen=True)
class EngineSettings:
    """Settings of an engine; lengths in tokens."""

    folder: Path
    dtype: str
    groups: Groups
    """The ranks of each engine of the role, numbered as in torch's world."""
    kv_cache_bytes: int
    memory_bytes: int
    """The engine's memory on each device: weights, cache and activations."""
    max_sequence_tokens: int
    """Maximum of prompt and response together."""
    max_concurrent_sequences: int
    block_tokens: int
    """Tokens per block of the key-value cache."""
    stop_token_ids: tuple[int, ...]
    """Tokens that end a response."""
    world: str
    """A name of the generating ranks and this incarnation, unique on the node."""
    excluded_tokens: tuple[range, ...] = ()
    """Tokens of probability 0: they are never sampled."""
    share_prompts: bool = False
    """True to compute keys and values of equal prompts once."""
    packs_weights: bool = False
    """True to compute with packed copies of the weights, on CPUs."""
    stop_texts: StopTexts | None = None
    """Texts that end a response. None: there are none."""
    records_kept_tokens: bool = False
    """True if sequences may ask for the tokens that their truncation kept."""


@dataclass(frozen=True)
class NewSequence:
    """A sequence to generate."""

    id: int
    """Unique among all sequences that the engine ever gets."""
    prompt: NDArray[np.int32]
    """Tokens of the prompt."""
    max_tokens: int
    """Maximum number of generated tokens."""
    temperature: float
    """0 is greedy."""
    seed: int
    """Seed of its own random numbers; unread if greedy."""
    weight_version: int
    """Version of the weights that generate it."""
    num_generated: int = 0
    """Tokens at the end of the prompt that were generated earlier: stop texts may begin in them."""
    truncation: Truncation = Truncation()
    """Limits of the tokens to sample from; greedy sequences have none."""
    records_kept_tokens: bool = False
    """True to return the tokens that the truncation kept."""


@dataclass(frozen=True)
class SequenceEnded:
    """An ended sequence."""

    id: int
    tokens: NDArray[np.int32]
    """Generated tokens, with the end token or the stop text; none if the first token goes beyond a
    stop text."""
    log_probs: NDArray[np.float32]
    """Log-probability of each token under the distribution that was sampled."""
    reason: StopReason | None
    """None: it was aborted before it was complete."""
    kept_tokens: NDArray[np.int32] | None = None
    """The tokens that a truncation kept at each sampling, encoded: `engines/kept_tokens.py`. None:
    the sequence does not record them."""


class GenerationEngine(Protocol):
    """Weights and key-value cache of one engine, and the sequences that it generates.

    A new engine has no weights. The tokens of a sequence depend on its own seed, not on the order
    in which sequences were added. Weights are published, restored and released only while no
    sequence runs.
    """

    @property
    def version(self) -> int | None:
        """Version of the published weights; None without weights."""

    @property
    def has_work(self) -> bool:
        """True if `step` must be called again, also if all sequences have ended."""

    def add(self, sequences: Sequence[NewSequence], *, keeps_prefixes: bool = False) -> None:
        """Add sequences, which run from the next step on.

        An engine without running sequences first allocates its cache, if that was released, and
        forgets the keys and values of earlier prompts: results must not depend on earlier calls.

        Args:
            sequences: to generate; none is allowed.
            keeps_prefixes: True if they belong to the call of the sequences before them, so that
                also an engine without running sequences keeps those keys and values.

        Raises:
            StaleWeights: a sequence names another version than the published one. None was added.
        """

    def step(self) -> list[SequenceEnded]:
        """Compute the next token of running sequences; return the sequences that ended."""

    def abort(self, ids: Sequence[int]) -> list[SequenceEnded]:
        """End running sequences; return them with their tokens so far, in the order of `ids`."""

    def share(self, value: T) -> T:
        """Return the value of the engine's first rank. Collective over its ranks.

        Args:
            value: of the first rank; any value on the others.
        """

    def views(self) -> Views:
        """This rank's storage of every weight, by Hugging Face name."""

    def publish(self, version: int) -> None:
        """Declare that the storage of `views` holds the weights of this version."""

    def restore(self) -> None:
        """Allocate the memory of the weights if it was released. They are undefined, and have no
        version, until they are written and published."""

    def release(self) -> None:
        """Free the memory of weights and cache."""

    def close(self) -> None:
        """Shut the engine down and free its memory. Collective over its ranks."""
