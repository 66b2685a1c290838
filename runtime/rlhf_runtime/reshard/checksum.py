"""Checksums of slices of a tensor that add up to the checksum of the full tensor.

With bits(x) an element's bit pattern as an integer and i_d its index in the *full* tensor, the
checksum of a slice is the sum over its elements of bits(x) * (1 + sum_d c_d i_d), modulo 2^64. It
is additive over disjoint slices on any ranks, and every factor depends on one index only, so that
sums along the dimensions suffice. It detects stale, lost and misplaced weights, not an adversary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from rlhf_runtime.reshard.slices import TensorSlice
from rlhf_runtime.reshard.views import Views

CPU_BLOCK_ELEMENTS = 1 << 16
"""Widened to 512 KiB of int64: stays in a core's cache; measured fastest."""
GPU_BLOCK_ELEMENTS = 1 << 24
"""128 MiB of int64: large enough to hide kernel launches."""

_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def slice_checksum(
    tensor: Float[Tensor, "*shape"], box: TensorSlice, dtype: torch.dtype | None = None
) -> Int64[Tensor, ""]:
    """The checksum of a slice of a tensor.

    Needs memory for a few blocks of some rows, never for a copy of the tensor.

    Args:
        tensor: the slice's elements; any strides, any device, any dtype of 1, 2, 4 or 8 bytes.
        box: position in the full tensor; its shape is the tensor's.
        dtype: cast the elements to it first, to compare with the other side of a cast.

    Returns:
        A scalar on the tensor's device. Sums of checksums wrap like the checksums themselves.
    """
    assert tensor.shape == box.shape, f"tensor of shape {tuple(tensor.shape)} for {box}"
    elements = tensor.detach()
    if elements.dim() == 0:  # scalars are vectors of length 1
        elements, box = elements[None], TensorSlice((0,), (1,))
    if elements.numel() == 0:
        return torch.zeros((), dtype=torch.int64, device=tensor.device)
    first_sums, later_sums = _marginals(elements, dtype or tensor.dtype)
    checksum = (first_sums * (1 + _weights(box, 0, tensor.device))).sum()
    for dim, sums in enumerate(later_sums, start=1):
        checksum = checksum + (sums * _weights(box, dim, tensor.device)).sum()
    return checksum


def tensor_checksums(
    names: Sequence[str], views: Views, dtypes: Mapping[str, torch.dtype]
) -> Int64[Tensor, " names"]:
    """Checksums of this rank's slices of each tensor, on the host; 0 without a slice.

    Args:
        names: of the tensors.
        views: this rank's slices.
        dtypes: in which each tensor is compared.
    """
    device = next((view.tensor.device for parts in views.values() for view in parts), None)
    zero = torch.zeros((), dtype=torch.int64, device=device)
    sums = [
        sum(
            (slice_checksum(view.tensor, view.box, dtypes[name]) for view in views.get(name, ())),
            zero,
        )
        for name in names
    ]
    return torch.stack(sums).cpu()  # one copy: the host would wait for the device at each one


def _marginals(
    elements: Float[Tensor, "*shape"], dtype: torch.dtype
) -> tuple[Int64[Tensor, " first"], list[Int64[Tensor, " later"]]]:
    """Per dimension: sums of bit patterns over all other dimensions, computed in blocks of rows."""
    block_elements = CPU_BLOCK_ELEMENTS if elements.device.type == "cpu" else GPU_BLOCK_ELEMENTS
    # Blocks bound the memory of the widened copies.
    num_rows = max(1, block_elements * elements.shape[0] // elements.numel())
    dims = list(range(elements.dim()))
    first: list[Tensor] = []
    later = [torch.zeros(n, dtype=torch.int64, device=elements.device) for n in elements.shape[1:]]
    for row in range(0, elements.shape[0], num_rows):
        block = elements[row : row + num_rows].to(dtype)
        # Bit patterns, not values: they also tell NaNs and signed zeros apart, and sum exactly.
        bits = block.view(_INTEGERS[dtype.itemsize]).to(torch.int64)
        first.append(bits.sum(dim=dims[1:]) if dims[1:] else bits)
        for dim, sums in enumerate(later, start=1):
            sums += bits.sum(dim=dims[:dim] + dims[dim + 1 :])
    return torch.cat(first), later


def _weights(box: TensorSlice, dim: int, device: torch.device) -> Int64[Tensor, " length"]:
    """c_d i_d for the box's indices in one dimension."""
    start, length = box.start[dim], box.shape[dim]
    indices = torch.arange(start, start + length, dtype=torch.int64, device=device)
    return indices * _factor(dim)


def _factor(dim: int) -> int:
    """An odd 64-bit number per dimension, as a signed integer."""
    # Odd, so that multiplication modulo 2^64 loses no bit of an index; from the golden ratio.
    factor = (0x9E3779B97F4A7C15 * (2 * dim + 1)) % 2**64
    return factor - 2**64 if factor >= 2**63 else factor
