import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlhf_runtime.reshard import checksum
from rlhf_runtime.reshard.checksum import slice_checksum
from rlhf_runtime.reshard.slices import TensorSlice, shard_slice

from ...depth import examples

DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64]
INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


def naive(tensor: torch.Tensor, box: TensorSlice) -> int:
    """The definition, element by element, in Python's integers."""
    total = 0
    bits = tensor.contiguous().view(INTEGERS[tensor.dtype.itemsize])
    for index in torch.cartesian_prod(*[torch.arange(n) for n in box.shape], torch.arange(1)):
        local = index.tolist()[:-1]
        weight = 1 + sum(checksum._factor(d) * (box.start[d] + i) for d, i in enumerate(local))
        total += int(bits[tuple(local)]) * weight
    return (total + 2**63) % 2**64 - 2**63


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(7,), (4, 5), (3, 2, 4)])
def test_it_is_the_sum_over_elements(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, shape: tuple[int, ...]
) -> None:
    monkeypatch.setattr(checksum, "CPU_BLOCK_ELEMENTS", 9)
    tensor = torch.randn(shape, dtype=torch.float64, generator=torch.manual_seed(0)).to(dtype)
    box = TensorSlice(tuple(range(10, 10 + len(shape))), shape)
    assert slice_checksum(tensor, box).item() == naive(tensor, box)


@settings(max_examples=examples(80), deadline=None)
@given(st.data(), st.sampled_from(DTYPES), st.lists(st.integers(1, 6), max_size=3))
def test_parts_add_up_however_the_box_is_cut(
    data: st.DataObject, dtype: torch.dtype, shape: list[int]
) -> None:
    tensor = torch.randn(shape, dtype=torch.float64, generator=torch.manual_seed(0)).to(dtype)
    whole = TensorSlice.full(shape)
    parts = [whole]
    for _ in range(data.draw(st.integers(0, 4)) if shape else 0):
        box = parts.pop(data.draw(st.integers(0, len(parts) - 1)))
        dim = data.draw(st.integers(0, len(shape) - 1))
        for index in range(2):
            half = shard_slice(box.shape, dim, index, 2)
            start = tuple(a + b for a, b in zip(box.start, half.start, strict=True))
            parts.append(TensorSlice(start, half.shape))
    total = sum(
        (slice_checksum(tensor[part.slices_in(whole)], part) for part in parts),
        torch.zeros((), dtype=torch.int64),
    )
    assert torch.equal(total, slice_checksum(tensor, whole))


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_changed_element_or_swapped_rows_or_columns_are_noticed(dtype: torch.dtype) -> None:
    tensor = torch.randn(6, 8, generator=torch.manual_seed(0)).to(dtype)
    box = TensorSlice.full(tensor.shape)
    seen = {int(slice_checksum(tensor, box))}
    changed = tensor.clone()
    changed[3, 4] += 0.125
    rows = tensor[[0, 4, 2, 3, 1, 5]]
    columns = tensor[:, [0, 1, 7, 3, 4, 5, 6, 2]]
    shifted = tensor.roll(1, 0)
    two_elements = tensor.clone()
    two_elements[0, 1], two_elements[1, 0] = tensor[1, 0], tensor[0, 1]
    for variant in (changed, rows, columns, shifted, two_elements):
        seen.add(int(slice_checksum(variant, box)))
    seen.add(int(slice_checksum(tensor, TensorSlice((1, 0), (6, 8)))))
    assert len(seen) == 7


def test_strides_do_not_matter() -> None:
    fused = torch.randn(12, 10, generator=torch.manual_seed(0))
    box = TensorSlice((2, 3), (4, 5))
    view = fused[4:8, 2:7]
    assert torch.equal(slice_checksum(view, box), slice_checksum(view.clone(), box))
    turned = view.T.contiguous().T
    assert torch.equal(slice_checksum(turned, box), slice_checksum(view.clone(), box))


def test_elements_can_be_cast_on_the_way() -> None:
    tensor = torch.randn(40, 5, generator=torch.manual_seed(0))
    box = TensorSlice.full(tensor.shape)
    cast = slice_checksum(tensor, box, dtype=torch.bfloat16)
    assert torch.equal(cast, slice_checksum(tensor.bfloat16(), box))


def test_an_empty_part_adds_nothing() -> None:
    assert slice_checksum(torch.empty(0, 4), TensorSlice((9, 0), (0, 4))).item() == 0


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_gpu_computes_the_same_checksum(dtype: torch.dtype) -> None:
    tensor = torch.randn(300, 200, generator=torch.manual_seed(0)).to(dtype)
    box = TensorSlice((5, 7), (300, 200))
    assert torch.equal(slice_checksum(tensor.cuda(), box).cpu(), slice_checksum(tensor, box))
