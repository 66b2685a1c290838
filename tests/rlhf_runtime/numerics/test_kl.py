import math

import pytest
import torch

from rlhf_api.spec.policy_loss import KlEstimator
from rlhf_runtime.numerics.losses import kl_estimate


@pytest.mark.parametrize(
    ("estimator", "expected"),
    [
        (KlEstimator.K1, math.log(2)),
        (KlEstimator.K2, math.log(2) ** 2 / 2),
        (KlEstimator.K3, 0.5 + math.log(2) - 1),
    ],
)
def test_each_estimator_has_its_formula(estimator: KlEstimator, expected: float) -> None:
    log_probs = torch.full((2, 1, 3), math.log(0.5), dtype=torch.float64)
    estimates = kl_estimate(log_probs, log_probs - math.log(2), estimator)
    assert estimates.shape == (2, 1, 3)
    torch.testing.assert_close(estimates, torch.full_like(estimates, expected))


@pytest.mark.parametrize("estimator", [KlEstimator.K1, KlEstimator.K3])
def test_k1_and_k3_are_unbiased(estimator: KlEstimator) -> None:
    policy = torch.randn(50, dtype=torch.float64, generator=torch.manual_seed(0)).log_softmax(0)
    reference = torch.randn(50, dtype=torch.float64, generator=torch.manual_seed(1)).log_softmax(0)
    expectation = (policy.exp() * kl_estimate(policy, reference, estimator)).sum()
    divergence = torch.nn.functional.kl_div(reference, policy, reduction="sum", log_target=True)
    torch.testing.assert_close(expectation, divergence)


@pytest.mark.parametrize(
    ("estimator", "of"), [("K1", "nothing"), ("K2", "the divergence"), ("K3", "the reverse")]
)
def test_gradients_in_a_loss_are_on_average_those_of(estimator: str, of: str) -> None:
    """Samples are the policy's: the expectation weighs them, and has no gradient of its own."""
    scores = torch.randn(50, dtype=torch.float64, generator=torch.manual_seed(0))
    scores.requires_grad_()
    policy = scores.log_softmax(0)
    reference = torch.randn(50, dtype=torch.float64, generator=torch.manual_seed(1)).log_softmax(0)
    weights = policy.detach().exp()
    loss = (weights * kl_estimate(policy, reference, KlEstimator(estimator))).sum()
    divergences = {
        "nothing": 0.0 * policy.sum(),
        "the divergence": (policy.exp() * (policy - reference)).sum(),
        "the reverse": (reference.exp() * (reference - policy)).sum(),
    }
    (got,) = torch.autograd.grad(loss, scores, retain_graph=True)
    (expected,) = torch.autograd.grad(divergences[of], scores)
    torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("estimator", list(KlEstimator))
def test_equal_policies_have_divergence_zero(estimator: KlEstimator) -> None:
    log_probs = torch.tensor([-0.1, -30.0])
    assert kl_estimate(log_probs, log_probs, estimator).tolist() == [0.0, 0.0]


def test_k3_stays_finite_and_never_negative_at_extremes() -> None:
    estimates = kl_estimate(
        torch.tensor([-500.0, 0.0, -1.0]), torch.tensor([0.0, -500.0, -1.0001]), KlEstimator.K3
    )
    assert estimates.isfinite().all()
    assert (estimates >= 0).all()


@pytest.mark.parametrize("estimator", list(KlEstimator))
def test_gradients_are_those_of_the_formula(estimator: KlEstimator) -> None:
    log_probs = -torch.rand(4, dtype=torch.float64, generator=torch.manual_seed(0))
    reference = -torch.rand(4, dtype=torch.float64, generator=torch.manual_seed(1))
    log_probs.requires_grad_()
    assert torch.autograd.gradcheck(lambda x: kl_estimate(x, reference, estimator), (log_probs,))
