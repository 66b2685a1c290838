import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlhf_flow.step.operations import GroupBaseline
from rlhf_runtime.numerics.group_advantages import group_advantages, mixed_groups, pass_at_k

from ...depth import examples

VALID4 = torch.ones(4, dtype=torch.bool)


def naive(scores: list[float], ids: list[int], valid: list[bool], by_std: bool) -> list[float]:
    out = []
    for score, group, ok in zip(scores, ids, valid, strict=True):
        members = [s for s, g, v in zip(scores, ids, valid, strict=True) if v and g == group]
        if not ok:
            out.append(0.0)
            continue
        if len(members) < 2:
            out.append(0.0)
            continue
        mean = sum(members) / len(members)
        std = math.sqrt(sum((s - mean) ** 2 for s in members) / (len(members) - 1))
        out.append((score - mean) / (std + 1e-6) if by_std else score - mean)
    return out


responses = st.lists(
    st.tuples(st.sampled_from([0.0, 0.25, 1.0, 3.0]), st.integers(-2, 2), st.booleans()),
    min_size=1,
    max_size=12,
)


@settings(max_examples=examples(100), deadline=None)
@given(responses, st.booleans())
def test_advantages_equal_the_naive_loop(rows: list[tuple[float, int, bool]], by_std: bool) -> None:
    scores, ids, valid = (list(column) for column in zip(*rows, strict=True))
    got = group_advantages(
        torch.tensor(scores, dtype=torch.float64), torch.tensor(ids), torch.tensor(valid), by_std
    )
    expected = torch.tensor(naive(scores, ids, valid, by_std), dtype=torch.float64)
    torch.testing.assert_close(got.advantages, expected, rtol=1e-9, atol=1e-9)
    members = [[s for s, g, v in rows if v and g == group] for group in set(ids)]
    assert got.num_groups == len(members)
    assert got.num_without_signal == sum(len(set(g)) < 2 for g in members)


def test_hand_computed_group_of_two_right_two_wrong() -> None:
    got = group_advantages(torch.tensor([1.0, 0.0, 0.0, 1.0]), torch.tensor([7, 7, 7, 7]), VALID4)
    half = 0.5 / (math.sqrt(1 / 3) + 1e-6)
    assert got.advantages.tolist() == pytest.approx([half, -half, -half, half])


def test_equal_scores_give_exactly_no_advantage() -> None:
    scores = torch.tensor([0.1, 0.1, 0.1, 0.7, 0.2])
    got = group_advantages(scores, torch.tensor([0, 0, 0, 1, 1]), torch.ones(5, dtype=torch.bool))
    assert got.advantages[:3].tolist() == [0.0, 0.0, 0.0]
    assert (got.num_groups, got.num_without_signal) == (2, 1)


@pytest.mark.parametrize("baseline", list(GroupBaseline))
@pytest.mark.parametrize("by_std", [False, True])
def test_the_only_valid_response_of_a_group_has_no_advantage(
    baseline: GroupBaseline, by_std: bool
) -> None:
    scores, valid = torch.tensor([3.0, torch.nan, 0.0, 1.0]), VALID4.clone()
    valid[1] = False
    got = group_advantages(
        *(scores, torch.tensor([5, 5, 6, 6]), valid, by_std, baseline),
        lengths=torch.tensor([1, 2, 3, 3]),
    )
    assert got.advantages[:2].tolist() == [0.0, 0.0]
    assert got.advantages[2] == -got.advantages[3] != 0
    assert (got.num_groups, got.num_without_signal) == (2, 1)


def test_invalid_responses_may_be_not_a_number() -> None:
    scores = torch.tensor([1.0, torch.nan, 0.0, 0.5])
    valid = torch.tensor([True, False, True, True])
    advantages = group_advantages(scores, torch.zeros(4, dtype=torch.int64), valid).advantages
    assert advantages.tolist() == pytest.approx([1.0, 0.0, -1.0, 0.0], abs=1e-5)


def against(
    scores: list[float], lengths: list[int], members: list[int], row: int, baseline: GroupBaseline
) -> float:
    """What a row's score is compared with, by its definition; itself where there is nothing."""
    others = [scores[m] for m in members if m != row]
    if not others:
        return scores[row]
    if baseline is GroupBaseline.LEAVE_ONE_OUT:
        return sum(others) / len(others)
    total = sum(lengths[m] for m in members)
    return sum(lengths[m] * scores[m] for m in members) / max(1, total)


@settings(max_examples=examples(100), deadline=None)
@given(responses, st.sampled_from([GroupBaseline.LEAVE_ONE_OUT, GroupBaseline.LENGTH_WEIGHTED]))
def test_other_baselines_equal_their_definitions(
    rows: list[tuple[float, int, bool]], baseline: GroupBaseline
) -> None:
    scores, ids, valid = (list(column) for column in zip(*rows, strict=True))
    lengths = [1 + 3 * row % 7 for row in range(len(rows))]
    expected = []
    for row, (score, group, ok) in enumerate(rows):
        members = [m for m, (_, g, v) in enumerate(rows) if v and g == group]
        expected.append(score - against(scores, lengths, members, row, baseline) if ok else 0.0)
    got = group_advantages(
        torch.tensor(scores, dtype=torch.float64),
        torch.tensor(ids),
        torch.tensor(valid),
        False,
        baseline,
        torch.tensor(lengths),
    )
    assert got.advantages.tolist() == pytest.approx(expected, abs=1e-9)
    members_of = [[s for s, g, v in rows if v and g == group] for group in set(ids)]
    assert got.num_without_signal == sum(len(set(members)) < 2 for members in members_of)


@settings(max_examples=examples(100), deadline=None)
@given(responses)
def test_rows_teach_where_valid_scores_of_their_prompt_differ(
    rows: list[tuple[float, int, bool]],
) -> None:
    scores, ids, valid = (list(column) for column in zip(*rows, strict=True))
    got = mixed_groups(torch.tensor(scores), torch.tensor(ids), torch.tensor(valid))
    assert got.tolist() == [
        ok and len({s for s, g, v in rows if v and g == group}) > 1 for _, group, ok in rows
    ]


@settings(max_examples=examples(60), deadline=None)
@given(responses, st.integers(1, 4))
def test_pass_at_k_is_the_share_of_subsets_in_which_one_passes(
    rows: list[tuple[float, int, bool]], k: int
) -> None:
    passed = torch.tensor([score >= 1 for score, _, _ in rows])
    ids, valid = (torch.tensor(column) for column in list(zip(*rows, strict=True))[1:])
    expected = []
    for group in sorted({g for _, g, _ in rows}):
        members = [score >= 1 for score, g, v in rows if v and g == group]
        subsets = list(itertools.combinations(members, k))
        if subsets:
            expected.append(sum(map(any, subsets)) / len(subsets))
    assert pass_at_k(passed, ids, valid, k).tolist() == pytest.approx(expected)
