import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlhf_runtime.numerics.padding import length_mask, pad, unpad


def test_rows_are_filled_on_the_right_to_the_longest() -> None:
    padded, mask = pad(torch.tensor([1, 2, 3, 4]), torch.tensor([1, 0, 3]), fill=-1)
    assert padded.tolist() == [[1, -1, -1], [-1, -1, -1], [2, 3, 4]]
    assert mask.tolist() == [[True, False, False], [False] * 3, [True] * 3]


@given(st.lists(st.integers(0, 5), max_size=6))
def test_unpad_undoes_pad(lengths: list[int]) -> None:
    values = torch.arange(2 * sum(lengths)).reshape(-1, 2)
    padded, mask = pad(values, torch.tensor(lengths, dtype=torch.int64))
    assert padded.shape == (len(lengths), max(lengths, default=0), 2)
    assert torch.equal(unpad(padded, mask), values)
    assert mask.sum(dim=1).tolist() == lengths


def test_gradients_reach_the_packed_values() -> None:
    values = torch.arange(3.0, requires_grad=True)
    padded, _ = pad(values, torch.tensor([2, 1]))
    (padded * torch.tensor([[1.0, 2.0], [3.0, 100.0]])).sum().backward()
    assert values.grad is not None
    assert values.grad.tolist() == [1.0, 2.0, 3.0]


def test_lengths_of_other_rows_are_refused() -> None:
    with pytest.raises(ValueError, match="got 3 values, lengths that sum to 4"):
        pad(torch.zeros(3), torch.tensor([2, 2]))


def test_no_rows_have_an_empty_mask() -> None:
    assert length_mask(torch.empty(0, dtype=torch.int64)).shape == (0, 0)
