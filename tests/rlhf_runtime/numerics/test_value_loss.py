import pytest
import torch

from rlhf_runtime.numerics.losses import clipped_value_loss


@pytest.mark.parametrize(
    ("value", "loss", "clipped"),
    [(1.1, 0.5 * 0.9**2, False), (1.5, 0.5 * 0.8**2, True), (0.0, 0.5 * 4.0, False)],
)
def test_hand_computed_losses_around_old_value_one_and_return_two(
    value: float, loss: float, clipped: bool
) -> None:
    got = clipped_value_loss(torch.tensor([value]), torch.tensor([1.0]), torch.tensor([2.0]), 0.2)
    assert got.token_losses.item() == pytest.approx(loss)
    assert got.clipped.item() is clipped


def test_without_a_range_it_is_half_the_squared_error() -> None:
    values, returns = torch.tensor([1.0, -3.0]), torch.tensor([2.0, 1.0])
    got = clipped_value_loss(values, torch.zeros(2), returns)
    assert got.token_losses.tolist() == [0.5, 8.0]
    assert not got.clipped.any()


def test_gradients_equal_finite_differences() -> None:
    values, old, returns = torch.randn(
        3, 20, dtype=torch.float64, generator=torch.manual_seed(0)
    ).unbind()
    values.requires_grad_()
    assert torch.autograd.gradcheck(
        lambda v: clipped_value_loss(v, old, returns, 0.3).token_losses, (values,)
    )
