"""Whole weights, from the parts of all ranks."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from rlhf_runtime.reshard.views import Views


def gathered_weights(views: Views, group: dist.ProcessGroup | None) -> dict[str, torch.Tensor]:
    """By name, in float32; collective over the group. What no rank holds is NaN."""
    everyone: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(everyone, dict(views), group)
    shapes: dict[str, tuple[int, ...]] = {}
    parts = [(name, *view) for held in everyone for name, own in held.items() for view in own]
    for name, _, box in parts:
        shapes[name] = tuple(map(max, shapes.get(name, box.stop), box.stop))
    found = {name: torch.full(shape, torch.nan) for name, shape in shapes.items()}
    for name, tensor, box in parts:
        found[name][tuple(map(slice, box.start, box.stop))] = tensor.detach().float()
    return found
