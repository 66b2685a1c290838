"""Pairs and their loss, against the sum written out."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlhf_runtime.numerics.preferences import (
    best_against_worst,
    bradley_terry_loss,
    count_pairs,
    is_paired,
    list_pairs,
)

ROWS = st.lists(st.tuples(st.integers(0, 4), st.integers(-1, 1)), max_size=20)


@given(ROWS)
def test_pairs_are_every_chosen_with_every_rejected_row_of_its_group(
    rows: list[tuple[int, int]],
) -> None:
    groups, preference = (
        torch.tensor([row[place] for row in rows], dtype=torch.int64) for place in (0, 1)
    )
    expected = [
        (one, other)
        for one, (group, sign) in enumerate(rows)
        for other, (other_group, other_sign) in enumerate(rows)
        if group == other_group and sign > 0 > other_sign
    ]
    pairs = list_pairs(groups, preference)
    assert list(zip(pairs.chosen.tolist(), pairs.rejected.tolist(), strict=True)) == expected
    assert count_pairs(groups, preference) == len(expected)


@pytest.mark.parametrize(
    ("margin", "loss"), [(0.0, math.log(2)), (2.0, math.log(1 + math.exp(-2))), (-800.0, 800.0)]
)
def test_hand_computed_losses(margin: float, loss: float) -> None:
    assert bradley_terry_loss(torch.tensor([margin])).item() == pytest.approx(loss)


@given(ROWS)
def test_rows_in_a_pair_are_those_that_some_pair_names(rows: list[tuple[int, int]]) -> None:
    groups, preference = (
        torch.tensor([row[place] for row in rows], dtype=torch.int64) for place in (0, 1)
    )
    pairs = list_pairs(groups, preference)
    named = {*pairs.chosen.tolist(), *pairs.rejected.tolist()}
    assert set(is_paired(groups, preference).nonzero()[:, 0].tolist()) == named


SCORED = st.lists(st.tuples(st.integers(0, 4), st.integers(-2, 2), st.booleans()), max_size=20)


def tensors_of(
    rows: list[tuple[int, int, bool]],
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Scores, groups and whether they are valid."""
    groups, scores, valid = ([row[place] for row in rows] for place in range(3))
    return (
        torch.tensor(scores, dtype=torch.float32),
        torch.tensor(groups, dtype=torch.int64),
        torch.tensor(valid, dtype=torch.bool),
    )


@given(SCORED)
def test_the_first_best_and_the_first_worst_valid_row_of_a_group_are_a_pair(
    rows: list[tuple[int, int, bool]],
) -> None:
    expected, pairs = [0] * len(rows), 0
    for group in {row[0] for row in rows}:
        own = [place for place, row in enumerate(rows) if row[0] == group and row[2]]
        scores = [rows[place][1] for place in own]
        if len(set(scores)) > 1:
            expected[own[scores.index(max(scores))]] = 1
            expected[own[scores.index(min(scores))]] = -1
            pairs += 1
    found = best_against_worst(*tensors_of(rows))
    assert found.preference.tolist() == expected and found.preference.dtype is torch.int8
    assert (found.num_groups, found.num_pairs) == (len({row[0] for row in rows}), pairs)


@given(SCORED, st.integers(-3, 3), st.integers(1, 5))
def test_only_the_order_of_scores_counts(
    rows: list[tuple[int, int, bool]], offset: int, factor: int
) -> None:
    scores, groups, valid = tensors_of(rows)
    plain = best_against_worst(scores, groups, valid)
    moved = best_against_worst(scores * factor + offset, groups, valid)
    wrong = torch.where(valid, scores, 100.0)  # what a row without a score holds
    assert plain.preference.equal(moved.preference)
    assert plain.preference.equal(best_against_worst(wrong, groups, valid).preference)
    turned = best_against_worst(-scores, groups, valid).preference
    assert turned.equal(-plain.preference)


@given(st.floats(-30, 30), st.floats(0, 0.49))
def test_a_preference_that_may_be_wrong_counts_both_ways_round(margin: float, doubt: float) -> None:
    there, back = (
        bradley_terry_loss(torch.tensor([sign * margin], dtype=torch.float64)) for sign in (1, -1)
    )
    smoothed = bradley_terry_loss(torch.tensor([margin], dtype=torch.float64), doubt)
    assert smoothed.item() == pytest.approx(((1 - doubt) * there + doubt * back).item(), abs=1e-9)


def test_gradients_equal_finite_differences() -> None:
    margins = torch.randn(9, dtype=torch.float64, generator=torch.manual_seed(0))
    for doubt in (0.0, 0.3):
        assert torch.autograd.gradcheck(bradley_terry_loss, (margins.requires_grad_(), doubt))
