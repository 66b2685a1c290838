"""Advantages of turns, against the definition written out."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlhf_runtime.numerics.turn_advantages import turn_advantages, turn_numbers

from ...depth import examples

REWARDS = [0.0, 0.5, 1.0, -2.0]
turns = st.lists(
    st.tuples(st.integers(1, 3), st.integers(1, 2), st.sampled_from(REWARDS)), max_size=4
)
"""Sampled tokens, tokens of the answer behind them, and reward of each turn."""
rows = st.lists(st.tuples(turns, st.integers(0, 2), st.booleans()), min_size=1, max_size=8)
"""Turns, group and validity of each row."""


def laid_out(chosen: list[list[tuple[int, int, float]]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Rewards on the last tokens of turns, and the mask of sampled tokens."""
    longest = max((sum(n + a for n, a, _ in row) for row in chosen), default=0)
    rewards = torch.zeros(len(chosen), longest, dtype=torch.float64)
    mask = torch.zeros(len(chosen), longest, dtype=torch.bool)
    for index, row in enumerate(chosen):
        at = 0
        for num_tokens, num_answer, reward in row:
            mask[index, at : at + num_tokens] = True
            rewards[index, at + num_tokens - 1] = reward
            at += num_tokens + num_answer
    return rewards, mask


def naive(
    chosen: list[list[tuple[int, int, float]]],
    groups: list[int],
    valid: list[bool],
    discount: float,
    by_std: bool,
) -> list[list[float]]:
    """The advantage of each turn of each row."""

    def value(row: int, turn: int) -> float:
        return sum(
            discount**distance * reward
            for distance, (_, _, reward) in enumerate(chosen[row][turn:])
        )

    advantages = []
    for row, own in enumerate(chosen):
        advantages.append([0.0] * len(own))
        for turn in range(len(own)):
            values = [
                value(other, turn)
                for other in range(len(chosen))
                if groups[other] == groups[row] and valid[other] and len(chosen[other]) > turn
            ]
            if not valid[row] or len(values) < 2:
                continue
            mean = sum(values) / len(values)
            std = math.sqrt(sum((v - mean) ** 2 for v in values) / (len(values) - 1))
            if len(set(values)) > 1:
                centred = value(row, turn) - mean
                advantages[-1][turn] = centred / (std + 1e-6) if by_std else centred
    return advantages


@settings(max_examples=examples(100), deadline=None)
@given(rows, st.sampled_from([1.0, 0.5, 0.0]), st.booleans())
def test_turns_are_compared_with_the_same_turns_of_the_prompt(
    drawn: list[tuple[list[tuple[int, int, float]], int, bool]], discount: float, by_std: bool
) -> None:
    chosen, groups, valid = (list(column) for column in zip(*drawn, strict=True))
    rewards, mask = laid_out(chosen)
    got = turn_advantages(
        rewards, mask, torch.tensor(groups), torch.tensor(valid), discount, by_std
    )
    expected = naive(chosen, groups, valid, discount, by_std)
    for row, own in enumerate(chosen):
        at = 0
        for turn, (num_tokens, num_answer, _) in enumerate(own):
            assert got[row, at : at + num_tokens].tolist() == pytest.approx(
                [expected[row][turn]] * num_tokens, abs=1e-9
            )
            assert not got[row, at + num_tokens : at + num_tokens + num_answer].any()
            at += num_tokens + num_answer


def test_turns_are_numbered_by_their_sampled_tokens() -> None:
    mask = torch.tensor([[1, 1, 0, 1, 0, 0, 1], [0, 1, 0, 0, 1, 1, 1]], dtype=torch.bool)
    assert turn_numbers(mask).tolist() == [[0, 0, 0, 1, 1, 1, 2], [-1, 0, 0, 0, 1, 1, 1]]


def test_no_sampled_token_is_no_turn() -> None:
    none = torch.zeros(2, 3, dtype=torch.bool)
    args = (torch.zeros(2), torch.ones(2, dtype=torch.bool), 1.0, True)
    assert not turn_advantages(torch.ones(2, 3), none, *args).any()
