import math

import pytest
import torch

from rlhf_api.spec.policy_loss import KlEstimator
from rlhf_runtime.numerics.losses import corrected_kl, kl_estimate, log_ratios


@pytest.mark.parametrize(
    ("estimator", "expected"),
    [
        (KlEstimator.K1, math.log(2)),
        (KlEstimator.K2, math.log(2) ** 2 / 2),
        (KlEstimator.K3, 0.5 + math.log(2) - 1),
        (KlEstimator.K3_CORRECTED, 0.5 + math.log(2) - 1),
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


def test_the_corrected_estimate_has_the_gradient_of_the_divergence_off_policy_too() -> None:
    """The policy that sampled is another one; the ratio makes up for it."""
    scores = torch.randn(50, dtype=torch.float64, generator=torch.manual_seed(0))
    scores.requires_grad_()
    policy = scores.log_softmax(0)
    reference = torch.randn(50, dtype=torch.float64, generator=torch.manual_seed(1)).log_softmax(0)
    other = torch.randn(50, dtype=torch.float64, generator=torch.manual_seed(2)).log_softmax(0)
    divergence = (policy.exp() * (policy - reference)).sum()
    (expected,) = torch.autograd.grad(divergence, scores, retain_graph=True)
    for sampler in (policy.detach(), other):
        estimates = kl_estimate(policy, reference, KlEstimator.K3_CORRECTED)
        weighted = corrected_kl(estimates, log_ratios(policy, sampler))
        loss = (sampler.exp() * weighted).sum()
        torch.testing.assert_close(loss, divergence)
        (got,) = torch.autograd.grad(loss, scores, retain_graph=True)
        torch.testing.assert_close(got, expected)


def test_gradients_of_two_tokens_computed_by_hand() -> None:
    """Probabilities 0.7 and 0.3, the reference's 0.5 and 0.5; in the first logit."""
    logits = torch.tensor([0.7, 0.3], dtype=torch.float64).log().requires_grad_()
    policy, reference = logits.log_softmax(0), torch.full((2,), 0.5, dtype=torch.float64).log()
    by_hand = {
        KlEstimator.K1: 0.0,
        KlEstimator.K2: 0.1779,
        KlEstimator.K3: 0.2000,
        KlEstimator.K3_CORRECTED: 0.1779,
    }
    for estimator, expected in by_hand.items():
        estimates = kl_estimate(policy, reference, estimator)
        if estimator is KlEstimator.K3_CORRECTED:
            estimates = corrected_kl(estimates, log_ratios(policy, policy))
        loss = (policy.detach().exp() * estimates).sum()
        (gradient,) = torch.autograd.grad(loss, logits, retain_graph=True)
        assert float(gradient[0]) == pytest.approx(expected, abs=1e-4), estimator


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
