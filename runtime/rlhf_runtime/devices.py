"""From the host to the device that computes."""

from __future__ import annotations

import torch


def to_device(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A tensor where it is computed with; itself if it is there.

    To a GPU it goes through pinned memory, and the host does not wait: a copy from other memory
    would let it stand until the GPU has done all that it was given before. torch keeps the pinned
    memory until the copy is done, and uses it again.
    """
    if device.type == "cuda" and tensor.device.type == "cpu":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)
