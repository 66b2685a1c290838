from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, is_tensor
from torch.distributions import Categorical
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.functional import linear
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from rlhf_api.spec.resources import Device
from rlhf_runtime.numerics.head import head_log_probs
from rlhf_sizing import costs
from rlhf_sizing.costs import block_bytes

from ..kept_sets import kept_tokens, masked_softmax, random_mask
from ..world_of_processes import failures, start_world
from . import head_ranks as ranks

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
    monkeypatch.setattr(costs, "MIN_BLOCK_WIDTH", width)
    monkeypatch.setitem(costs.BLOCK_ELEMENTS, Device.CPU, 1)


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


EXCLUDED = (range(0, 1), range(5, 10), range(16, VOCABULARY))
"""The first token, a gap that fills a block of five, and padding of seven tokens."""


@pytest.mark.parametrize("width", BLOCKS)
@pytest.mark.parametrize("with_entropy", [True, False])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_excluded_tokens_take_no_part_though_their_logits_are_the_highest(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, with_entropy: bool, width: int
) -> None:
    """The oracle is torch's softmax over the other tokens."""
    set_width(monkeypatch, width)
    hidden, weight, _ = sample(40, dtype)
    no_text = [token for tokens in EXCLUDED for token in tokens]
    possible = [token for token in range(VOCABULARY) if token not in no_text]
    weight[no_text] = 20 * weight[no_text].abs()
    hidden = hidden.abs()
    logits = linear(hidden, weight)
    assert (logits.argmax(dim=1)[:, None] == torch.tensor(no_text)).any(dim=1).all()
    positions = torch.arange(40) % len(possible)
    hidden.requires_grad_()
    weight.requires_grad_()
    log_probs, entropies = head_log_probs(
        hidden, weight, torch.tensor(possible)[positions], 0.8, with_entropy, excluded=EXCLUDED
    )
    expected = (linear(hidden, weight[possible]).double() / 0.8).log_softmax(dim=1)
    expected_entropies = -(expected.exp() * expected).sum(dim=1)
    chosen = expected.gather(1, positions[:, None])[:, 0]
    tolerance = 3e-2 if dtype is torch.bfloat16 else 1e-5
    close = {"rtol": tolerance, "atol": tolerance}
    torch.testing.assert_close(log_probs.double(), chosen, **close)
    loss, expected_loss = log_probs.sum(), chosen.sum()
    if entropies is not None:
        torch.testing.assert_close(entropies.double(), expected_entropies, **close)
        loss, expected_loss = loss - entropies.sum(), expected_loss - expected_entropies.sum()
    gradients = torch.autograd.grad(loss, (hidden, weight))
    for one, other in zip(
        gradients, torch.autograd.grad(expected_loss, (hidden, weight)), strict=True
    ):
        largest = float(other.abs().max())
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance * largest)
    assert not gradients[1][no_text].any()


@pytest.mark.parametrize("width", BLOCKS)
@pytest.mark.parametrize("with_entropy", [True, False])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_the_softmax_is_over_the_kept_tokens(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, with_entropy: bool, width: int
) -> None:
    """Some blocks have no kept token; some rows have only the token itself."""
    set_width(monkeypatch, width)
    hidden, weight, tokens = sample(40, dtype, scale=5.0)
    mask = random_mask(tokens, VOCABULARY)
    kept = kept_tokens(mask, tokens).bits(range(VOCABULARY), torch.device("cpu"))
    inputs = (hidden.requires_grad_(), weight.requires_grad_())
    results = head_log_probs(*inputs, tokens, 0.8, with_entropy, kept=kept)
    expected = masked_softmax(linear(hidden, weight).double() / 0.8, mask, tokens)
    tolerance = 3e-2 if dtype is torch.bfloat16 else 1e-5
    loss, expected_loss = torch.tensor(0.0), torch.tensor(0.0, dtype=torch.float64)
    for factor, one, other in zip((1.0, -0.3), results, expected, strict=True):
        if one is not None:
            torch.testing.assert_close(one.double(), other, rtol=tolerance, atol=tolerance)
            loss, expected_loss = loss + factor * one.sum(), expected_loss + factor * other.sum()
    for one, other in zip(
        torch.autograd.grad(loss, inputs), torch.autograd.grad(expected_loss, inputs), strict=True
    ):
        largest = float(other.abs().max())
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance * largest)


@pytest.mark.parametrize("width", BLOCKS)
def test_a_token_that_no_row_kept_gets_no_gradient(
    monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    set_width(monkeypatch, width)
    hidden, weight, tokens = sample(40, torch.float32)
    tokens = tokens % 10
    mask = random_mask(tokens, VOCABULARY, without=range(10, VOCABULARY))
    kept = kept_tokens(mask, tokens).bits(range(VOCABULARY), torch.device("cpu"))
    log_probs, entropies = head_log_probs(
        hidden, weight.requires_grad_(), tokens, 1.0, True, excluded=EXCLUDED[-1:], kept=kept
    )
    assert entropies is not None
    (gradient,) = torch.autograd.grad((log_probs + entropies).sum(), weight)
    assert gradient[:10].any() and not gradient[10:].any()


class Held(TorchDispatchMode):
    """The most bytes that tensors hold at once which are made meanwhile."""

    def __init__(self) -> None:
        super().__init__()
        self.peak = 0
        self._made: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {each.untyped_storage()._cdata for each in tree_leaves(args) if is_tensor(each)}
        made = func(*args, **(kwargs or {}))
        for each in tree_leaves(made):
            if is_tensor(each) and each.untyped_storage()._cdata not in given:
                storage = each.untyped_storage()
                self._made[storage._cdata] = (StorageWeakRef(storage), storage.nbytes())
        alive = {key: each for key, each in self._made.items() if not each[0].expired()}
        self._made = alive
        self.peak = max(self.peak, sum(size for _, size in alive.values()))
        return made


@pytest.mark.parametrize("width", [128, 1000])
@pytest.mark.parametrize("with_entropy", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_no_more_is_held_than_plans_count(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, with_entropy: bool, width: int
) -> None:
    """Beside the gradient of the weights, and a few numbers for each token."""
    set_width(monkeypatch, width)
    rows, vocabulary, hidden_size = 512, 600, 32
    hidden = torch.randn(rows, hidden_size).to(dtype).requires_grad_()
    weight = torch.randn(vocabulary, hidden_size).to(dtype).requires_grad_()
    tokens = torch.randint(vocabulary, (rows,))
    with Held() as held:
        log_probs, entropies = head_log_probs(hidden, weight, tokens, 0.9, with_entropy)
        loss = log_probs.sum() if entropies is None else (log_probs + entropies).sum()
        torch.autograd.backward(loss)
    planned = block_bytes(Device.CPU, rows, vocabulary)
    inputs = rows * hidden_size * (4 + 2 * dtype.itemsize)
    few = rows * 4 * 16
    assert held.peak <= planned + inputs + few + weight.nbytes, (held.peak, planned)
    assert held.peak > planned / 2, "else the plan counts too much"


def test_where_nothing_is_predicted_gradients_are_zero() -> None:
    hidden, weight, tokens = sample(0, torch.float32)
    log_probs, _ = head_log_probs(hidden.requires_grad_(), weight.requires_grad_(), tokens)
    log_probs.sum().backward()
    assert weight.grad is not None and not weight.grad.any()
    assert log_probs.shape == (0,)


def test_a_temperature_of_zero_is_refused() -> None:
    with pytest.raises(ValueError, match="must be positive: got 0"):
        head_log_probs(*sample(1, torch.float32), temperature=0.0)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with every rank's results, after all scenarios ran."""
    folder: Path = tmp_path_factory.mktemp("world")
    return start_world("tests.rlhf_runtime.numerics.head_ranks", 3, folder)


@pytest.mark.ray
@pytest.mark.parametrize("scenario", list(ranks.SCENARIOS))
def test_ranks_that_share_the_vocabulary(world: Path, scenario: str) -> None:
    assert not failures(world, scenario)
