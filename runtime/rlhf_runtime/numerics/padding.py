"""Converts packed rows, one after the other, to padded rows [rows, longest] and back."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Int, Shaped
from torch import Tensor

from rlhf_runtime.devices import to_device


def length_mask(lengths: Int[Tensor, " rows"]) -> Bool[Tensor, "rows longest"]:
    """Return the mask of rows padded on the right to the longest of them.

    Args:
        lengths: values in each row; 0 is allowed.

    Returns:
        True on the first `lengths[row]` positions of each row.
    """
    longest = int(lengths.max()) if lengths.numel() else 0
    return torch.arange(longest, device=lengths.device) < lengths[:, None]


def pad(
    values: Shaped[Tensor, "total ..."],
    lengths: Int[Tensor, " rows"],
    fill: float = 0.0,
) -> tuple[Shaped[Tensor, "rows longest ..."], Bool[Tensor, "rows longest"]]:
    """Pad packed rows on the right to the longest row. Differentiable.

    Args:
        values: all rows, one after the other; any dtype.
        lengths: values in each row; they sum to `total`. Pass them on the host, wherever the values
            are.
        fill: value of the padded positions.

    Returns:
        The padded rows and the mask that is True on real values, both on the values' device.

    Raises:
        ValueError: the lengths do not sum to `total`.
    """
    mask = length_mask(lengths)
    num_values = int(lengths.sum())
    if num_values != values.shape[0]:
        raise ValueError(
            f"packed values do not match their lengths: got {values.shape[0]} values, lengths that "
            f"sum to {num_values}; pass the lengths of the same rows"
        )
    # `nonzero` of lengths on the host: on a device it would make the host wait for its result.
    positions = to_device(mask.flatten().nonzero()[:, 0], values.device)
    padded = values.new_full((mask.numel(), *values.shape[1:]), fill)
    padded[positions] = values
    return padded.reshape(*mask.shape, *values.shape[1:]), to_device(mask, values.device)


def unpad(
    padded: Shaped[Tensor, "rows longest ..."], mask: Bool[Tensor, "rows longest"]
) -> Shaped[Tensor, "total ..."]:
    """Drop the masked positions and pack the rows one after the other. Differentiable.

    Args:
        padded: padded rows, any dtype.
        mask: True where a value is kept; any mask, not only right-padding.

    Returns:
        The kept values, row after row.
    """
    # Boolean indexing goes row by row, so values keep their packed order.
    return padded[mask]
