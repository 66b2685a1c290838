"""Pairs and their loss, against the sum written out."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlhf_runtime.numerics.preferences import bradley_terry_loss, count_pairs, pairs_of

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
    pairs = pairs_of(groups, preference)
    assert list(zip(pairs.chosen.tolist(), pairs.rejected.tolist(), strict=True)) == expected
    assert count_pairs(groups, preference) == len(expected)


@pytest.mark.parametrize(
    ("margin", "loss"), [(0.0, math.log(2)), (2.0, math.log(1 + math.exp(-2))), (-800.0, 800.0)]
)
def test_hand_computed_losses(margin: float, loss: float) -> None:
    assert bradley_terry_loss(torch.tensor([margin])).item() == pytest.approx(loss)


def test_gradients_equal_finite_differences() -> None:
    margins = torch.randn(9, dtype=torch.float64, generator=torch.manual_seed(0))
    assert torch.autograd.gradcheck(bradley_terry_loss, (margins.requires_grad_(),))
