"""Layouts as storage: what ranks of a gloo world hold, and the full weights that it should be."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from rlhf_runtime.reshard.layout import Layout
from rlhf_runtime.reshard.slices import TensorSlice
from rlhf_runtime.reshard.views import View, Views

from . import model_layouts as ml

HIDDEN = 64


def shapes_of(vocabulary: int = 300) -> ml.Shapes:
    return ml.with_norms_and_vocabulary(ml.matrices(2, HIDDEN), HIDDEN, vocabulary)


def full_weights(shapes: ml.Shapes, seed: int = 0) -> dict[str, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=draw) for name, shape in shapes.items()}


def part(full: Tensor, box: TensorSlice) -> Tensor:
    return full[box.slices_in(TensorSlice.full(full.shape))]


def filled(layout: Layout, rank: int, full: Mapping[str, Tensor]) -> Views:
    views: dict[str, list[View]] = {}
    for name, box in layout.pieces[rank]:
        views.setdefault(name, []).append(View(part(full[name], box).clone(), box))
    return views


def empty(layout: Layout, rank: int, dtype: Callable[[str], torch.dtype]) -> Views:
    views: dict[str, list[View]] = {}
    for name, box in layout.pieces[rank]:
        tensor = torch.full(box.shape, torch.nan, dtype=dtype(name))
        views.setdefault(name, []).append(View(tensor, box))
    return views


def assert_equal(views: Views, full: Mapping[str, Tensor]) -> None:
    for name, parts in views.items():
        for tensor, box in parts:
            assert torch.equal(tensor, part(full[name], box).to(tensor.dtype)), (name, box)


def float32(name: str) -> torch.dtype:
    return torch.float32


def bfloat16(name: str) -> torch.dtype:
    return torch.bfloat16


def mixed(name: str) -> torch.dtype:
    return torch.float32 if "norm" in name else torch.bfloat16


def tensor_parallel(shapes: ml.Shapes, world_size: int, size: int = 2) -> Layout:
    return ml.model_parallel(shapes, [(0, r % size) for r in range(world_size)], size, 1, 2)
