import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlhf_api.spec.policy_loss import LossAggregation
from rlhf_runtime.numerics.losses import Denominators, aggregate

from ...depth import examples

LOSSES = torch.tensor([[1.0, 2.0, torch.nan], [4.0, torch.nan, 6.0], [torch.nan] * 3])
MASK = ~LOSSES.isnan()

HAND = [
    (LossAggregation.TOKEN_MEAN, 13 / 4),
    (LossAggregation.SEQUENCE_MEAN_TOKEN_SUM, (3 + 10) / 2),
    (LossAggregation.SEQUENCE_MEAN_TOKEN_MEAN, (1.5 + 5) / 2),
    (LossAggregation.SEQUENCE_MEAN_FIXED_LENGTH, (3 + 10) / 20),
]


@pytest.mark.parametrize(("mode", "expected"), HAND)
def test_hand_computed_values(mode: LossAggregation, expected: float) -> None:
    assert aggregate(LOSSES, MASK, mode, Denominators(4, 2, 10)).item() == pytest.approx(expected)


@settings(max_examples=examples(60), deadline=None)
@given(
    mode=st.sampled_from(list(LossAggregation)),
    seed=st.integers(0, 2**31),
    ranks=st.lists(st.lists(st.integers(0, 4), max_size=4), min_size=1, max_size=4),
)
def test_shares_and_gradients_sum_to_the_whole_however_it_is_cut(
    mode: LossAggregation, seed: int, ranks: list[list[int]]
) -> None:
    """`ranks` holds the number of sequences of every micro-batch of every rank."""
    num_rows = sum(map(sum, ranks))
    draw = torch.Generator().manual_seed(seed)
    losses = torch.randn(num_rows, 5, dtype=torch.float64, generator=draw).requires_grad_()
    mask = torch.rand(num_rows, 5, generator=draw) < 0.5
    denominators = Denominators(int(mask.sum()), int(mask.any(dim=1).sum()), 7)
    whole = aggregate(losses, mask, mode, denominators)
    (whole_gradient,) = torch.autograd.grad(whole, losses)

    order = torch.randperm(num_rows, generator=draw)
    cuts = [size for rank in ranks for size in rank]
    shares = [aggregate(losses[rows], mask[rows], mode, denominators) for rows in order.split(cuts)]
    total = torch.stack([losses.sum() * 0, *shares]).sum()
    (gradient,) = torch.autograd.grad(total, losses)
    torch.testing.assert_close(total, whole, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(gradient, whole_gradient, rtol=1e-12, atol=1e-12)


def test_masked_losses_that_are_not_numbers_leave_gradients_finite() -> None:
    losses = LOSSES.clone().requires_grad_()
    aggregate(losses, MASK, LossAggregation.TOKEN_MEAN, Denominators(4, 2)).backward()
    assert losses.grad is not None
    torch.testing.assert_close(losses.grad, MASK.float() / 4)


def test_a_fixed_length_must_be_given() -> None:
    with pytest.raises(ValueError, match="got fixed_length None"):
        aggregate(LOSSES, MASK, LossAggregation.SEQUENCE_MEAN_FIXED_LENGTH, Denominators(4, 2))


@pytest.mark.parametrize("mode", list(LossAggregation))
def test_a_batch_without_tokens_has_loss_zero(mode: LossAggregation) -> None:
    nothing = torch.zeros(2, 3, dtype=torch.bool)
    assert aggregate(torch.ones(2, 3), nothing, mode, Denominators(0, 0, 4)).item() == 0.0
