"""Copies tensors to the device that computes."""

from __future__ import annotations

import torch


def to_device(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """The tensor on a device; itself if it is there."""
    # Through pinned memory: a copy from other memory would block the host until the GPU has
    # finished all earlier work. torch keeps the pinned memory until the copy is done.
    if device.type == "cuda" and tensor.device.type == "cpu":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)
