import torch

from rlhf_runtime.numerics.aggregation import Denominators
from rlhf_runtime.numerics.supervised import cross_entropy


def test_cross_entropy_is_the_mean_negative_log_probability() -> None:
    logits = torch.randn(2, 4, 9, generator=torch.manual_seed(0))
    tokens = torch.randint(9, (2, 4), generator=torch.manual_seed(1))
    mask = torch.tensor([[1, 1, 0, 0], [1, 1, 1, 0]], dtype=torch.bool)
    log_probs = logits.log_softmax(-1).gather(2, tokens[..., None])[..., 0]
    expected = torch.nn.functional.cross_entropy(logits[mask], tokens[mask])
    torch.testing.assert_close(cross_entropy(log_probs, mask, Denominators.of(mask)), expected)


def test_shares_of_micro_batches_sum_to_the_whole() -> None:
    log_probs = -torch.rand(5, 3, dtype=torch.float64, generator=torch.manual_seed(0))
    mask = torch.rand(5, 3, generator=torch.manual_seed(1)) < 0.6
    denominators = Denominators.of(mask)
    shares = [cross_entropy(log_probs[i:j], mask[i:j], denominators) for i, j in ((0, 1), (1, 5))]
    torch.testing.assert_close(sum(shares), -log_probs[mask].mean())
