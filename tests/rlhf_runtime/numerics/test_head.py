import pytest
import torch
from torch import Tensor
from torch.distributions import Categorical
from torch.nn.functional import linear

from rlhf_api.spec.resources import Device
from rlhf_flow.planning import head_memory
from rlhf_flow.planning.head_memory import BYTES_PER_LOGIT, block_bytes
from rlhf_runtime.numerics import head
from rlhf_runtime.numerics.head import head_log_probs

VOCABULARY = 23
BLOCKS = [1, 5, VOCABULARY, 1000]
"""Widths: single tokens, the last one narrower, all of it, more than there is."""


def sample(rows: int, dtype: torch.dtype, scale: float = 1.0) -> tuple[Tensor, Tensor, Tensor]:
    """Hidden states, a head's weight, tokens."""
    draw = torch.Generator().manual_seed(rows)
    hidden = scale * torch.randn(rows, 6, dtype=torch.float64, generator=draw)
    weight = torch.randn(VOCABULARY, 6, dtype=torch.float64, generator=draw)
    tokens = torch.randint(VOCABULARY, (rows,), generator=draw)
    return hidden.to(dtype), weight.to(dtype), tokens


def set_width(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    """Cut the vocabulary into blocks of a width."""
    monkeypatch.setattr(head_memory, "MIN_BLOCK_WIDTH", width)
    monkeypatch.setitem(head_memory.BLOCK_ELEMENTS, Device.CPU, 1)


@pytest.mark.parametrize("width", BLOCKS)
@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_values_are_those_of_the_distribution_over_the_logits(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, temperature: float, width: int
) -> None:
    set_width(monkeypatch, width)
    hidden, weight, tokens = sample(40, dtype)
    oracle = Categorical(logits=linear(hidden, weight).double() / temperature)
    log_probs, entropies = head_log_probs(hidden, weight, tokens, temperature, with_entropy=True)
    assert entropies is not None
    assert log_probs.dtype == torch.promote_types(dtype, torch.float32)
    tolerance = 3e-2 if dtype is torch.bfloat16 else 1e-5  # narrow products are rounded otherwise
    torch.testing.assert_close(
        log_probs.double(), oracle.log_prob(tokens), rtol=tolerance, atol=tolerance
    )
    torch.testing.assert_close(entropies.double(), oracle.entropy(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("width", BLOCKS)
@pytest.mark.parametrize("with_entropy", [True, False])
def test_gradients_equal_finite_differences(
    monkeypatch: pytest.MonkeyPatch, with_entropy: bool, width: int
) -> None:
    set_width(monkeypatch, width)
    hidden, weight, tokens = sample(5, torch.float64)

    def both(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        log_probs, entropies = head_log_probs(x, w, tokens, 0.8, with_entropy)
        return (log_probs,) if entropies is None else (log_probs, entropies)

    assert torch.autograd.gradcheck(both, (hidden.requires_grad_(), weight.requires_grad_()))


@pytest.mark.parametrize("width", BLOCKS)
def test_logits_far_apart_neither_overflow_nor_lose_their_sum(
    monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    set_width(monkeypatch, width)
    hidden, weight, tokens = sample(40, torch.float32, scale=1e3)
    oracle = Categorical(logits=linear(hidden, weight).double())
    log_probs, entropies = head_log_probs(hidden, weight, tokens, with_entropy=True)
    assert entropies is not None
    torch.testing.assert_close(log_probs.double(), oracle.log_prob(tokens), rtol=1e-5, atol=1e-3)
    torch.testing.assert_close(entropies.double(), oracle.entropy(), rtol=1e-5, atol=1e-5)


def test_no_more_logits_are_held_than_plans_count(monkeypatch: pytest.MonkeyPatch) -> None:
    widest: list[int] = []

    def noted(hidden: Tensor, weight: Tensor) -> Tensor:
        made = linear(hidden, weight)
        widest.append(made.numel())
        return made

    set_width(monkeypatch, 5)
    monkeypatch.setattr(head, "linear", noted)
    hidden, weight, tokens = sample(8, torch.float32)
    log_probs, _ = head_log_probs(hidden.requires_grad_(), weight.requires_grad_(), tokens)
    log_probs.sum().backward()
    assert max(widest) * BYTES_PER_LOGIT == block_bytes(Device.CPU, 8, VOCABULARY) == 40 * 12
    assert len(widest) == 2 * 5, "forward and, once more, backward"


def test_where_nothing_is_predicted_gradients_are_zero() -> None:
    hidden, weight, tokens = sample(0, torch.float32)
    log_probs, _ = head_log_probs(hidden.requires_grad_(), weight.requires_grad_(), tokens)
    log_probs.sum().backward()
    assert weight.grad is not None and not weight.grad.any()
    assert log_probs.shape == (0,)


def test_a_temperature_of_zero_is_refused() -> None:
    with pytest.raises(ValueError, match="must be positive: got 0"):
        head_log_probs(*sample(1, torch.float32), temperature=0.0)
