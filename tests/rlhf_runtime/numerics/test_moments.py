import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlhf_runtime.numerics.moments import explained_variance, masked_var, moments, whiten

from ...depth import examples
from ..thread_ranks import ThreadRanks


def test_moments_are_those_of_the_kept_elements() -> None:
    x = torch.tensor([[1.0, 2.0, 99.0], [4.0, torch.nan, 5.0]])
    mask = torch.tensor([[1, 1, 0], [1, 0, 1]], dtype=torch.bool)
    num_elements, mean, variance = moments(x, mask)
    assert (num_elements.item(), mean.item()) == (4, 3.0)
    assert variance.item() == pytest.approx((4 + 1 + 1 + 4) / 3)
    assert masked_var(x, mask).item() == variance.item()


def test_a_large_offset_does_not_drown_the_variance() -> None:
    x = torch.randn(1000, dtype=torch.float64, generator=torch.manual_seed(0))
    mask = torch.ones(1000, dtype=torch.bool)
    torch.testing.assert_close(masked_var(x + 1e8, mask), (x + 1e8).var(), rtol=1e-6, atol=0)


@settings(max_examples=examples(20), deadline=None)
@given(st.integers(0, 2**31), st.lists(st.integers(0, 5), min_size=1, max_size=4))
def test_whitening_does_not_depend_on_the_cut_into_ranks(seed: int, cut: list[int]) -> None:
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(sum(cut), 3, generator=draw) * 10 + 50
    mask = torch.rand(sum(cut), 3, generator=draw) < 0.7
    whole = whiten(x, mask)
    parts = list(zip(x.split(cut), mask.split(cut), strict=True))
    ranks = ThreadRanks(len(cut))
    pieces = ranks.run(lambda rank: whiten(*parts[rank], reduce=ranks.reduce(rank)))
    torch.testing.assert_close(torch.cat(pieces), whole, rtol=0, atol=1e-6)


def test_whitened_elements_have_mean_zero_and_variance_one() -> None:
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(40, 7, generator=draw) * 3 + 2
    mask = torch.rand(40, 7, generator=draw) < 0.5
    whitened = whiten(x, mask)
    assert (whitened[~mask] == 0).all()
    assert whitened[mask].mean().item() == pytest.approx(0, abs=1e-6)
    assert whitened[mask].var().item() == pytest.approx(1, abs=1e-6)
    expected = (x[mask] - x[mask].mean()) / torch.sqrt(x[mask].var() + 1e-8)
    torch.testing.assert_close(whitened[mask], expected)


@pytest.mark.parametrize("kept", [0, 1])
def test_too_few_elements_whiten_to_zero(kept: int) -> None:
    mask = torch.arange(3) < kept
    assert whiten(torch.tensor([5.0, 6.0, 7.0]), mask).tolist() == [0.0, 0.0, 0.0]
    assert masked_var(torch.tensor([5.0, 6.0, 7.0]), mask).item() == 0.0


def test_explained_variance_of_perfect_constant_and_opposite_values() -> None:
    returns = torch.tensor([1.0, 2.0, 3.0, 100.0])
    mask = torch.tensor([True, True, True, False])
    assert explained_variance(returns + 5, returns, mask).item() == 1.0
    assert explained_variance(torch.zeros(4), returns, mask).item() == 0.0
    assert explained_variance(-returns, returns, mask).item() == -3.0
    assert explained_variance(returns, torch.ones(4), mask).item() == 0.0
