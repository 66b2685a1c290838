"""Derives all random seeds from the job's seed. Pure, and independent of ranks."""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

_WORD = np.uint64
# Increment and multipliers of SplitMix64.
_GOLDEN = _WORD(0x9E3779B97F4A7C15)
_FIRST, _SECOND = _WORD(0xBF58476D1CE4E5B9), _WORD(0x94D049BB133111EB)

# Distance of the numbers of two turns: a prompt has fewer samples.
TURN_STRIDE = 1 << 32


def mix(*parts: int | NDArray[np.integer]) -> NDArray[np.uint64]:
    """A well-mixed 64-bit number from several; arrays are combined element by element.

    Each part is absorbed by a round of SplitMix64, so their order matters. Without arrays the
    result has one element.

    Source: Steele, Lea, Flood, Fast splittable pseudorandom number generators.
    """
    state = np.zeros(1, dtype=_WORD)
    for part in parts:
        # `view` accepts negative parts: their bits count.
        state = state + np.asarray(part).astype(np.int64).view(_WORD) + _GOLDEN
        state = (state ^ (state >> _WORD(30))) * _FIRST
        state = (state ^ (state >> _WORD(27))) * _SECOND
        state = state ^ (state >> _WORD(31))
    return state


def sample_seeds(
    job_seed: int,
    step: int,
    prompt_ids: NDArray[np.int64],
    sample_indexes: NDArray[np.integer],
    call: str = "",
    turns: NDArray[np.integer] | None = None,
) -> list[int]:
    """One seed per response or turn, non-negative and below 2**63.

    A seed depends only on the job's seed, the call, the step, the prompt, and the numbers of sample
    and turn.

    Args:
        call: id of the call and its graph; two calls of a step draw different responses.
        turns: numbers of turns, from 0. None: responses have one.
    """
    numbers = sample_indexes.astype(np.int64)
    if turns is not None:
        numbers = numbers + turns.astype(np.int64) * TURN_STRIDE
    # Neither the rank nor the order of requests may matter: results are equal on any placement.
    # Seven bytes of the digest, and the shift below, keep the numbers within 63 bits.
    digest = int.from_bytes(hashlib.sha256(call.encode()).digest()[:7])
    mixed = mix(job_seed, digest, step, prompt_ids, numbers) >> _WORD(1)
    seeds: list[int] = mixed.tolist()
    return seeds
