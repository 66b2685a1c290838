"""Every source of randomness derives from the job's seed: pure, vectorised, independent of ranks."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_WORD = np.uint64


def mix(*parts: int | NDArray[np.integer]) -> NDArray[np.uint64]:
    """A well-mixed 64-bit number from several; arrays are combined element by element.

    Each part is absorbed by a round of SplitMix64. Source: Steele, Lea, Flood, Fast splittable
    pseudorandom number generators.
    """
    state = np.zeros(1, dtype=_WORD)
    with np.errstate(over="ignore"):
        for part in parts:
            state = state + np.asarray(part).astype(np.int64).view(_WORD) + _WORD(0x9E3779B97F4A7C15)
            state = (state ^ (state >> _WORD(30))) * _WORD(0xBF58476D1CE4E5B9)
            state = (state ^ (state >> _WORD(27))) * _WORD(0x94D049BB133111EB)
            state = state ^ (state >> _WORD(31))
    return state


def sample_seeds(
    job_seed: int,
    step: int,
    prompt_ids: NDArray[np.int64],
    sample_indexes: NDArray[np.integer],
    purpose: int = 0,
) -> list[int]:
    """One seed per response, non-negative and below 2**63.

    Depends on the job's seed, the step, the prompt and the sample's number only: not on the rank that
    generates, nor on the order of requests. `purpose` separates training from evaluation.
    """
    mixed = mix(job_seed, purpose, step, prompt_ids, sample_indexes)
    return [int(seed) for seed in mixed >> _WORD(1)]
