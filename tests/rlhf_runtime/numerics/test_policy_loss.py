import math

import pytest
import torch

from rlhf_runtime.numerics.losses import (
    cispo_loss,
    clipped_policy_loss,
    importance_weights,
    log_ratios,
    passes_mismatch_threshold,
    sequence_log_ratios,
)

CASES = [  # ratio, advantage, loss, clipped: clip 0.2 down, 0.3 up
    (1.0, 2.0, -2.0, False),
    (1.5, 2.0, -2.6, True),
    (0.5, 2.0, -1.0, False),
    (0.5, -2.0, 1.6, True),
    (1.5, -2.0, 3.0, False),
    (1.25, 2.0, -2.5, False),
]


@pytest.mark.parametrize(("ratio", "advantage", "loss", "clipped"), CASES)
def test_hand_computed_losses(ratio: float, advantage: float, loss: float, clipped: bool) -> None:
    got = clipped_policy_loss(torch.tensor([math.log(ratio)]), torch.tensor([advantage]), 0.2, 0.3)
    assert got.token_losses.item() == pytest.approx(loss, rel=1e-6)
    assert got.clipped.item() is clipped
    assert got.ratios.item() == pytest.approx(ratio)
    assert not got.dual_clipped.any()


def test_the_dual_clip_bounds_losses_of_negative_advantages_only() -> None:
    log_probs = torch.tensor([10.0, 10.0, 1.0]).log().requires_grad_()
    advantages = torch.tensor([-2.0, 2.0, -2.0])
    got = clipped_policy_loss(log_probs, advantages, 0.2, 0.2, dual_clip=3.0)
    assert got.token_losses.tolist() == pytest.approx([6.0, -2.4, 2.0])
    assert got.dual_clipped.tolist() == [True, False, False]
    got.token_losses.sum().backward()
    assert log_probs.grad is not None
    assert log_probs.grad.tolist() == pytest.approx([0.0, 0.0, 2.0])


def test_no_gradient_flows_where_the_clip_is_in_force() -> None:
    log_probs = torch.tensor([case[0] for case in CASES]).log().requires_grad_()
    advantages = torch.tensor([case[1] for case in CASES])
    got = clipped_policy_loss(log_probs, advantages, 0.2, 0.3)
    got.token_losses.sum().backward()
    assert log_probs.grad is not None
    assert torch.equal(log_probs.grad == 0, got.clipped)


def test_the_first_update_is_the_policy_gradient() -> None:
    log_probs = torch.tensor([-1.0, -2.0], requires_grad=True)
    advantages = torch.tensor([3.0, -4.0])
    ratios = log_ratios(log_probs, log_probs)
    clipped_policy_loss(ratios, advantages, 0.2, 0.2).token_losses.sum().backward()
    assert log_probs.grad is not None
    assert log_probs.grad.tolist() == [-3.0, 4.0]


def test_gradients_equal_finite_differences() -> None:
    old = -torch.rand(30, dtype=torch.float64, generator=torch.manual_seed(0))
    log_probs = old + 0.4 * torch.randn(30, dtype=torch.float64, generator=torch.manual_seed(1))
    advantages = torch.randn(30, dtype=torch.float64, generator=torch.manual_seed(2))
    log_probs.requires_grad_()
    assert torch.autograd.gradcheck(
        lambda x: clipped_policy_loss(log_ratios(x, old), advantages, 0.2, 0.28, 1.5).token_losses,
        (log_probs,),
    )


def test_extreme_ratios_stay_finite() -> None:
    far = log_ratios(torch.tensor([0.0]), torch.tensor([-1e4]))
    got = clipped_policy_loss(far, torch.tensor([-1.0]), 0.2, 0.2)
    assert got.token_losses.isfinite().all()
    assert cispo_loss(far, far, torch.tensor([-1.0]), 1.0, 1e9).token_losses.isfinite().all()


def test_the_ratio_of_a_response_is_the_geometric_mean_of_its_kept_tokens() -> None:
    ratios = torch.tensor([2.0, 8.0, 5.0, 3.0, 7.0]).log().requires_grad_()
    kept = torch.tensor([True, True, False, True, True])
    got = sequence_log_ratios(ratios, torch.tensor([3, 0, 1, 1]), kept).exp()
    assert got.tolist() == pytest.approx([4.0, 4.0, 4.0, 3.0, 7.0])
    got[0].backward()
    assert ratios.grad is not None
    assert ratios.grad.tolist() == pytest.approx([2.0, 2.0, 0.0, 0.0, 0.0])


def test_gspo_weighs_every_token_of_a_response_alike() -> None:
    """Mean over a response of -A s has the gradient -A s / length of each token's log-prob."""
    log_probs = torch.tensor([-1.0, -1.5, -0.5], requires_grad=True)
    old = torch.tensor([-1.1, -1.2, -0.6])
    whole = sequence_log_ratios(
        log_ratios(log_probs, old), torch.tensor([3]), torch.ones(3, dtype=torch.bool)
    )
    loss = clipped_policy_loss(whole, torch.full((3,), 2.0), 0.5, 0.5).token_losses.mean()
    loss.backward()
    ratio = math.exp((0.1 - 0.3 + 0.1) / 3)
    assert loss.item() == pytest.approx(-2 * ratio)
    assert log_probs.grad is not None
    assert log_probs.grad.tolist() == pytest.approx([-2 * ratio / 3] * 3)


def test_cispo_weighs_log_probs_by_clipped_ratios_that_have_no_gradient() -> None:
    log_probs = torch.tensor([3.0, 0.5, 0.9]).log().requires_grad_()
    ratios = torch.tensor([3.0, 0.25, 0.9]).log()
    got = cispo_loss(log_probs, ratios, torch.tensor([1.0, -1.0, 2.0]), 0.5, 1.0)
    assert got.token_losses.tolist() == pytest.approx(
        [-2.0 * math.log(3.0), 0.5 * math.log(0.5), -1.8 * math.log(0.9)]
    )
    assert got.clipped.tolist() == [True, True, False]
    got.token_losses.sum().backward()
    assert log_probs.grad is not None
    assert log_probs.grad.tolist() == pytest.approx([-2.0, 0.5, -1.8])


def test_importance_weights_are_ratios_up_to_a_cap_without_gradient() -> None:
    trainer = torch.tensor([0.5, 0.1, 0.9]).log().requires_grad_()
    weights = importance_weights(trainer, torch.tensor([0.25, 0.2, 0.1]).log(), 2.0)
    assert torch.allclose(weights, torch.tensor([2.0, 0.5, 2.0]))
    assert not weights.requires_grad
    assert importance_weights(torch.tensor([0.0]), torch.tensor([-1e9]), 1e6) == 1e6


def test_responses_on_which_engines_disagree_are_told_by_the_mean_of_their_tokens() -> None:
    rollout = torch.tensor([-1.0, -1.0, -1.0, -1.0, -1.0])
    trainer = rollout + torch.tensor([0.3, -0.3, 0.2, -0.2, 0.0])
    lengths = torch.tensor([2, 1, 0, 1, 1])
    assert passes_mismatch_threshold(trainer, rollout, lengths, 1.2).tolist() == [
        *(True, False, True, False, True)
    ]
    assert passes_mismatch_threshold(trainer, rollout, lengths, 1.3).all()
