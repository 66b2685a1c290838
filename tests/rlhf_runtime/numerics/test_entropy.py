import pytest
import torch
from torch.distributions import Categorical

from rlhf_runtime.numerics import entropy
from rlhf_runtime.numerics.entropy import token_log_probs

from ..kept_sets import kept_tokens, masked_softmax, random_mask


def sample(rows: int, vocabulary: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(rows * vocabulary)
    logits = 4 * torch.randn(rows, vocabulary, dtype=torch.float64, generator=draw)
    return logits.to(dtype), torch.randint(vocabulary, (rows,), generator=draw)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_values_are_those_of_the_categorical_distribution(
    dtype: torch.dtype, temperature: float
) -> None:
    logits, tokens = sample(300, 301, dtype)
    oracle = Categorical(logits=logits.double() / temperature)
    log_probs, entropies = token_log_probs(logits, tokens, temperature, with_entropy=True)
    assert entropies is not None
    assert log_probs.dtype == torch.promote_types(dtype, torch.float32)
    torch.testing.assert_close(log_probs.double(), oracle.log_prob(tokens), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(entropies.double(), oracle.entropy(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("with_entropy", [True, False])
def test_gradients_equal_finite_differences_across_blocks(
    monkeypatch: pytest.MonkeyPatch, with_entropy: bool
) -> None:
    monkeypatch.setattr(entropy, "CPU_BLOCK_ELEMENTS", 10)  # two rows a block
    logits, tokens = sample(5, 4, torch.float64)

    def both(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        log_probs, entropies = token_log_probs(x, tokens, 0.8, with_entropy)
        return (log_probs,) if entropies is None else (log_probs, entropies)

    assert torch.autograd.gradcheck(both, (logits.requires_grad_(),))


def test_only_one_output_used_still_differentiates() -> None:
    logits, tokens = sample(3, 5, torch.float64)
    logits.requires_grad_()
    _, entropies = token_log_probs(logits, tokens, 1.0, with_entropy=True)
    assert entropies is not None
    (got,) = torch.autograd.grad(entropies.sum(), logits)
    (expected,) = torch.autograd.grad(Categorical(logits=logits).entropy().sum(), logits)
    torch.testing.assert_close(got, expected)


def test_impossible_tokens_count_as_probability_zero() -> None:
    logits = torch.tensor([[0.0, 0.0, -torch.inf]], requires_grad=True)
    log_probs, entropies = token_log_probs(logits, torch.tensor([0]), 1.0, with_entropy=True)
    assert entropies is not None
    expected = torch.tensor([2.0]).log()
    torch.testing.assert_close(entropies, expected)
    torch.testing.assert_close(log_probs, -expected)
    (log_probs + entropies).sum().backward()
    assert logits.grad is not None
    torch.testing.assert_close(logits.grad, torch.tensor([[0.5, -0.5, 0.0]]))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_excluded_tokens_take_no_part_however_large_their_logits_are(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype
) -> None:
    monkeypatch.setattr(entropy, "CPU_BLOCK_ELEMENTS", 24)  # two rows a block
    excluded, possible = (range(0, 1), range(5, 12)), [1, 2, 3, 4]
    logits, positions = sample(5, 4, dtype)
    all_logits = torch.full((5, 12), 50.0, dtype=dtype)
    all_logits[:, possible] = logits
    tokens = torch.tensor(possible)[positions]
    results = []
    for values, targets, options in (
        (all_logits, tokens, {"excluded": excluded}),
        (logits, positions, {}),
    ):
        values.requires_grad_()
        log_probs, entropies = token_log_probs(values, targets, 0.7, True, **options)
        assert entropies is not None
        (gradient,) = torch.autograd.grad((log_probs - 0.3 * entropies).sum(), values)
        results.append((log_probs, entropies, gradient))
    (*found, gradient), (*expected, expected_gradient) = results
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(gradient[:, possible], expected_gradient)
    assert not gradient[:, [0, *range(5, 12)]].any()


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_the_softmax_is_over_the_kept_tokens(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype
) -> None:
    monkeypatch.setattr(entropy, "CPU_BLOCK_ELEMENTS", 24)  # two rows a block
    logits, tokens = sample(11, 12, dtype)
    mask = random_mask(tokens, 12)
    kept = kept_tokens(mask, tokens).bits(range(12), torch.device("cpu"))
    logits.requires_grad_()
    results = token_log_probs(logits, tokens, 0.7, True, kept=kept)
    expected = masked_softmax(logits.to(results[0].dtype) / 0.7, mask, tokens)
    gradients = []
    for log_probs, entropies in (results, expected):
        assert entropies is not None
        gradients += torch.autograd.grad((log_probs - 0.3 * entropies).sum(), logits)
    torch.testing.assert_close(results, expected)
    torch.testing.assert_close(*gradients)
    assert not gradients[0][~mask].any()


def test_the_logits_are_left_as_they_were() -> None:
    logits, tokens = sample(4, 6, torch.float32)
    before = logits.clone()
    token_log_probs(logits, tokens, 1.0, with_entropy=True)
    assert torch.equal(logits, before)


def test_no_rows_are_no_problem() -> None:
    logits = torch.empty(0, 7, requires_grad=True)
    log_probs, _ = token_log_probs(logits, torch.empty(0, dtype=torch.int64))
    log_probs.sum().backward()
    assert log_probs.shape == (0,)


def test_a_temperature_of_zero_is_refused() -> None:
    with pytest.raises(ValueError, match="must be positive: got 0"):
        token_log_probs(torch.zeros(1, 2), torch.zeros(1, dtype=torch.int64), 0.0)
