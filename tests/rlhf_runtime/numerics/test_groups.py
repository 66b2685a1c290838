import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlhf_runtime.numerics.groups import group_advantages

VALID4 = torch.ones(4, dtype=torch.bool)


def naive(scores: list[float], ids: list[int], valid: list[bool], by_std: bool) -> list[float]:
    out = []
    for score, group, ok in zip(scores, ids, valid, strict=True):
        members = [s for s, g, v in zip(scores, ids, valid, strict=True) if v and g == group]
        if not ok:
            out.append(0.0)
            continue
        mean, std = 0.0, 1.0
        if len(members) > 1:
            mean = sum(members) / len(members)
            std = math.sqrt(sum((s - mean) ** 2 for s in members) / (len(members) - 1))
        out.append((score - mean) / (std + 1e-6) if by_std else score - mean)
    return out


responses = st.lists(
    st.tuples(st.sampled_from([0.0, 0.25, 1.0, 3.0]), st.integers(-2, 2), st.booleans()),
    min_size=1,
    max_size=12,
)


@settings(max_examples=100, deadline=None)
@given(responses, st.booleans())
def test_advantages_equal_the_naive_loop(rows: list[tuple[float, int, bool]], by_std: bool) -> None:
    scores, ids, valid = (list(column) for column in zip(*rows, strict=True))
    got = group_advantages(
        torch.tensor(scores, dtype=torch.float64), torch.tensor(ids), torch.tensor(valid), by_std
    )
    expected = torch.tensor(naive(scores, ids, valid, by_std), dtype=torch.float64)
    torch.testing.assert_close(got.advantages, expected, rtol=1e-9, atol=1e-9)
    members = [[s for s, g, v in rows if v and g == group] for group in set(ids)]
    assert got.num_groups == sum(bool(group) for group in members)
    assert got.num_equal_groups == sum(len(g) > 1 and len(set(g)) == 1 for g in members)


def test_hand_computed_group_of_two_right_two_wrong() -> None:
    got = group_advantages(torch.tensor([1.0, 0.0, 0.0, 1.0]), torch.tensor([7, 7, 7, 7]), VALID4)
    half = 0.5 / (math.sqrt(1 / 3) + 1e-6)
    assert got.advantages.tolist() == pytest.approx([half, -half, -half, half])


def test_equal_scores_give_exactly_no_advantage() -> None:
    scores = torch.tensor([0.1, 0.1, 0.1, 0.7])
    got = group_advantages(scores, torch.tensor([0, 0, 0, 1]), VALID4)
    assert got.advantages[:3].tolist() == [0.0, 0.0, 0.0]
    assert (got.num_groups, got.num_equal_groups) == (2, 1)


def test_a_group_of_one_keeps_its_score() -> None:
    got = group_advantages(torch.tensor([3.0]), torch.tensor([5]), torch.tensor([True]), False)
    assert got.advantages.tolist() == [3.0]
    assert got.num_equal_groups == 0


def test_invalid_responses_may_be_not_a_number() -> None:
    scores = torch.tensor([1.0, torch.nan, 0.0, 0.5])
    valid = torch.tensor([True, False, True, True])
    advantages = group_advantages(scores, torch.zeros(4, dtype=torch.int64), valid).advantages
    assert advantages.tolist() == pytest.approx([1.0, 0.0, -1.0, 0.0], abs=1e-5)
