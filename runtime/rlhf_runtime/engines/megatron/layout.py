"""Where Megatron keeps each Hugging Face weight: views of its fused, cut parameters, with boxes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch

from rlhf_runtime.engines.megatron.architecture import Architecture, full_name
from rlhf_runtime.engines.megatron.family import Cut, Parameter
from rlhf_runtime.reshard.layout import Layout, Piece, check_copies
from rlhf_runtime.reshard.slices import TensorSlice
from rlhf_runtime.reshard.views import FlatShard, View, Views

Storage = Callable[[torch.nn.Parameter], torch.Tensor | FlatShard | None]
"""What of a parameter is looked at: its values, another tensor of its shape, or what is held for a
range of it once it is flattened; None: nothing."""


@dataclass(frozen=True)
class Place:
    """Which of a parameter's equal parts a rank holds."""

    tensor: int
    tensor_size: int


def check_pieces(
    architecture: Architecture,
    pieces: Sequence[Iterable[Piece]],
    *,
    tensor: int,
    pipeline: int,
    data: int = 1,
) -> None:
    """Check that ranks hold every element of every weight exactly as often as they should.

    Args:
        architecture: of the model.
        pieces: of every rank of so many replicas.
        tensor: tensor ranks.
        pipeline: pipeline stages.
        data: replicas.

    Raises:
        LayoutError: a region is missing on some rank or held too often, or a name is unknown.
    """
    layout = Layout(architecture.shapes(), tuple(map(tuple, pieces)))
    copies = architecture.copies(tensor, pipeline)
    check_copies(layout, {name: data * count for name, count in copies.items()})


Part = tuple[str, torch.Tensor, TensorSlice]


def parts_of(
    tensor: torch.Tensor,
    parameter: Parameter,
    layer: int | None,
    architecture: Architecture,
    place: Place,
) -> Iterator[Part]:
    """The weights in a rank's storage of one parameter: names, views of it, and their boxes.

    Padding of the vocabulary is in none of them.

    Args:
        tensor: the rank's storage.
        parameter: what it is.
        layer: counted from 0 over all stages; None outside of layers.
        architecture: of the model.
        place: the rank's.
    """
    names = [full_name(weight, layer) for weight in parameter.weights]
    if parameter.cut is Cut.GROUPS:
        yield from _groups(tensor, names, architecture, place)
    elif parameter.cut is Cut.PAIRS:
        for name, half in zip(names, tensor.chunk(2), strict=True):
            yield name, half, _rows(half, place.tensor * half.shape[0])
    elif parameter.cut is Cut.VOCABULARY:
        first = place.tensor * tensor.shape[0]
        own = tensor[: max(0, architecture.vocabulary_size - first)]
        yield names[0], own, _rows(own, min(first, architecture.vocabulary_size))
    elif parameter.cut is Cut.COLUMNS:
        start = (0, place.tensor * tensor.shape[1])
        yield names[0], tensor, TensorSlice(start, tuple(tensor.shape))
    else:
        yield names[0], tensor, TensorSlice.full(tuple(tensor.shape))


def _groups(
    tensor: torch.Tensor, names: list[str], architecture: Architecture, place: Place
) -> Iterator[Part]:
    """Rows of each group's queries, then of its key, then of its value."""
    size = architecture.head_size
    queries = architecture.num_attention_heads // architecture.num_key_value_heads * size
    num_groups = architecture.num_key_value_heads // place.tensor_size
    row = 0
    for group in range(place.tensor * num_groups, (place.tensor + 1) * num_groups):
        for name, rows in zip(names, (queries, size, size), strict=True):
            held = tensor[row : row + rows]
            yield name, held, _rows(held, group * rows)
            row += rows


def _rows(tensor: torch.Tensor, start: int) -> TensorSlice:
    return TensorSlice((start, *(0,) * (tensor.dim() - 1)), tuple(tensor.shape))


def collect(parts: Iterator[Part]) -> Views:
    """Views by name; those without an element are left out."""
    views: dict[str, list[View]] = {}
    for name, tensor, box in parts:
        if tensor.numel():
            views.setdefault(name, []).append(View(tensor, box))
    return views
