"""Layout of Megatron's storage: views of its fused, cut parameters by Hugging Face name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch

from rlhf_runtime.engines.megatron.architecture import Architecture, full_name
from rlhf_runtime.engines.megatron.family import Parameter, WeightSplit
from rlhf_runtime.reshard.layout import Layout, Piece, check_copies
from rlhf_runtime.reshard.slices import TensorSlice
from rlhf_runtime.reshard.views import FlatShard, View, Views

GetStorage = Callable[[torch.nn.Parameter], torch.Tensor | FlatShard | None]
"""Returns a parameter's values, another tensor of its shape, or a shard of a flattened one; None
leaves the parameter out."""


@dataclass(frozen=True)
class TensorShard:
    """The part of a parameter on one tensor rank: `index` of `size`."""

    index: int
    size: int


def check_mesh_pieces(
    architecture: Architecture,
    pieces: Sequence[Iterable[Piece]],
    *,
    tensor: int,
    pipeline: int,
    data: int = 1,
) -> None:
    """Check that every element of every weight is on exactly the expected number of ranks.

    Args:
        architecture: of the model.
        pieces: of every rank of all replicas.
        tensor: number of tensor ranks.
        pipeline: number of pipeline stages.
        data: number of replicas.

    Raises:
        LayoutError: a region is on too few or too many ranks, or a name is unknown.
    """
    layout = Layout(architecture.shapes(), tuple(map(tuple, pieces)))
    copies = architecture.copies(tensor, pipeline)
    check_copies(layout, {name: data * count for name, count in copies.items()})


WeightSlice = tuple[str, torch.Tensor, TensorSlice]
"""A weight's name, a view of its part in a rank's storage, and the part's box."""


def weight_slices(
    tensor: torch.Tensor,
    parameter: Parameter,
    layer: int | None,
    architecture: Architecture,
    shard: TensorShard,
) -> Iterator[WeightSlice]:
    """The weights in a rank's storage of one parameter, without padding of the vocabulary.

    Args:
        tensor: the rank's storage.
        parameter: its mapping.
        layer: counted from 0 over all stages; None outside of layers.
        architecture: of the model.
        shard: the rank's part of the parameter.
    """
    names = [full_name(weight, layer) for weight in parameter.weights]
    if parameter.split is WeightSplit.GROUPS:
        yield from _query_groups(tensor, names, architecture, shard)
    elif parameter.split is WeightSplit.PAIRS:
        for name, half in zip(names, tensor.chunk(2), strict=True):
            yield name, half, _row_slice(half, shard.index * half.shape[0])
    elif parameter.split is WeightSplit.VOCABULARY:
        first = shard.index * tensor.shape[0]
        own = tensor[: max(0, architecture.vocabulary_size - first)]
        yield names[0], own, _row_slice(own, min(first, architecture.vocabulary_size))
    elif parameter.split is WeightSplit.COLUMNS:
        start = (0, shard.index * tensor.shape[1])
        yield names[0], tensor, TensorSlice(start, tuple(tensor.shape))
    else:
        yield names[0], tensor, TensorSlice.full(tuple(tensor.shape))


def _query_groups(
    tensor: torch.Tensor, names: list[str], architecture: Architecture, shard: TensorShard
) -> Iterator[WeightSlice]:
    """For each query group: rows of its queries, then of its key, then of its value."""
    size = architecture.head_size
    queries = architecture.num_attention_heads // architecture.num_key_value_heads * size
    num_groups = architecture.num_key_value_heads // shard.size
    row = 0
    for group in range(shard.index * num_groups, (shard.index + 1) * num_groups):
        for name, rows in zip(names, (queries, size, size), strict=True):
            part = tensor[row : row + rows]
            yield name, part, _row_slice(part, group * rows)
            row += rows


def _row_slice(tensor: torch.Tensor, start: int) -> TensorSlice:
    return TensorSlice((start, *(0,) * (tensor.dim() - 1)), tuple(tensor.shape))


def group_views(slices: Iterator[WeightSlice]) -> Views:
    """Views by name; those without an element are left out."""
    views: dict[str, list[View]] = {}
    for name, tensor, box in slices:
        if tensor.numel():
            views.setdefault(name, []).append(View(tensor, box))
    return views
