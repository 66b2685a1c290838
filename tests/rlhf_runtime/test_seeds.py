import hashlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlhf_runtime.seeds import mix, sample_seeds

MASK = 2**64 - 1
WORDS = st.integers(-(2**63), 2**63 - 1)


def split_mix(parts: list[int]) -> int:
    """SplitMix64 over Python's unbounded integers: the published constants, one round per part."""
    state = 0
    for part in parts:
        state = (state + part + 0x9E3779B97F4A7C15) & MASK
        mixed = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & MASK
        state = mixed ^ (mixed >> 31)
    return state


def test_one_zero_gives_the_first_published_number_of_splitmix64() -> None:
    assert int(mix(0)[0]) == 0xE220A8397B1DCDAF


@settings(deadline=None)
@given(st.lists(WORDS, min_size=1, max_size=6))
def test_mix_is_splitmix64_over_its_parts(parts: list[int]) -> None:
    assert mix(*parts).tolist() == [split_mix(parts)]


@settings(deadline=None)
@given(WORDS, st.lists(st.tuples(WORDS, WORDS), max_size=5))
def test_arrays_are_combined_element_by_element(first: int, pairs: list[tuple[int, int]]) -> None:
    left = np.array([pair[0] for pair in pairs], dtype=np.int64)
    right = np.array([pair[1] for pair in pairs], dtype=np.int64)
    assert mix(first, left, right).tolist() == [split_mix([first, *pair]) for pair in pairs]


def test_a_seed_is_the_upper_63_bits_of_its_parts_mixed() -> None:
    prompts, samples = np.array([11, 12]), np.array([0, 5], dtype=np.int32)
    seeds = sample_seeds(7, 3, prompts, samples, "step/actor.generate")
    call = int.from_bytes(hashlib.sha256(b"step/actor.generate").digest()[:7])
    assert seeds == [split_mix([7, call, 3, 11, 0]) >> 1, split_mix([7, call, 3, 12, 5]) >> 1]
    assert all(type(seed) is int for seed in seeds)


def test_every_turn_has_a_seed_of_its_own_and_the_first_that_of_a_response() -> None:
    samples, turns = (axis.ravel() for axis in np.meshgrid(np.arange(64), np.arange(8)))
    prompts = np.zeros_like(samples)
    seeds = sample_seeds(5, 9, prompts, samples, turns=turns)
    assert len(set(seeds)) == 64 * 8
    assert seeds[:64] == sample_seeds(5, 9, prompts[:64], samples[:64])


@settings(deadline=None)
@given(st.permutations(range(24)), st.integers(0, 24))
def test_seeds_depend_on_neither_order_nor_rank(order: list[int], cut: int) -> None:
    prompts, samples = np.repeat(np.arange(6), 4), np.tile(np.arange(4), 6)
    whole = sample_seeds(5, 9, prompts, samples)
    ranks = [np.array(order[:cut], dtype=np.int64), np.array(order[cut:], dtype=np.int64)]
    apart = [sample_seeds(5, 9, prompts[rows], samples[rows]) for rows in ranks]
    assert apart[0] + apart[1] == [whole[row] for row in order]


def test_a_million_draws_over_steps_calls_prompts_and_samples_never_collide() -> None:
    prompts, samples = np.repeat(np.arange(2_500), 8), np.tile(np.arange(8), 2_500)
    drawn = [
        sample_seeds(0, step, prompts, samples, call)
        for call in ("step/actor.generate", "step/actor.generate#2")
        for step in range(1, 26)
    ]
    seeds = np.array(drawn, dtype=np.int64).ravel()
    assert len(seeds) == 1_000_000 and len(np.unique(seeds)) == len(seeds)
    assert seeds.min() >= 0
    # Evenly spread: each of 16 equal ranges has its share within five standard deviations.
    counts = np.bincount(seeds >> 59, minlength=16)
    assert np.abs(counts - 62_500).max() < 5 * 250


@pytest.mark.parametrize("changed", range(5))
def test_every_part_matters(changed: int) -> None:
    parts = [1, 2, 3, 4, 5]
    other = list(parts)
    other[changed] += 1
    assert seed_of(parts) != seed_of(other)


def test_no_prompts_need_no_seeds() -> None:
    nothing = np.empty(0, dtype=np.int64)
    assert sample_seeds(1, 2, nothing, nothing) == []


def seed_of(parts: list[int]) -> int:
    seed, step, prompt, sample, call = parts
    return sample_seeds(seed, step, np.array([prompt]), np.array([sample]), f"call {call}")[0]
