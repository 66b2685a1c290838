"""Local shards: a rank's slices of weights, as torch.distributed.checkpoint saves and loads them.

A checkpoint of one layout loads under any other: torch intersects the saved boxes with those that a
rank has now, and reads directly into its views.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    MetadataIndex,
    TensorProperties,
)
from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType

from rlhf_runtime.reshard.errors import LayoutError
from rlhf_runtime.reshard.slices import TensorSlice, are_disjoint
from rlhf_runtime.reshard.views import View, Views, check_views, tensor_dtypes


# A tensor only because torch's checkpoint planners support boxes of tensors and of nothing else.
class LocalShards(torch.Tensor):
    """A tensor of which this rank has some boxes, as views of any storage.

    Its shape is the full tensor's. It supports no computation, only torch's `_Checkpointable`
    protocol. If several ranks have the same box, one of them saves it. Boxes of two ranks that
    overlap otherwise are refused on saving, unless only one of the two saves.
    """

    views: tuple[View, ...]
    """This rank's slices; they are disjoint."""
    is_saved: bool
    """True if this rank's boxes are saved; all are loaded."""

    @staticmethod
    def __new__(
        cls, shape: Sequence[int], views: Sequence[View], is_saved: bool = True
    ) -> LocalShards:
        """Wrap views of a tensor of this shape, which `local_shards` has validated."""
        first = views[0].tensor
        shards = _without_views(cls, shape, first.dtype, first.device)
        shards.views = tuple(View(view.tensor.detach(), view.box) for view in views)
        shards.is_saved = is_saved
        return shards

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # torch says less than it allows
        cls,
        func: Any,
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> LocalShards:
        """Support `new_empty` only."""
        # The stager of checkpoints creates an empty tensor and copies the attributes.
        if func is torch.ops.aten.new_empty.default:
            like, shape = args
            device = (kwargs or {}).get("device", like.device)
            return _without_views(cls, shape, like.dtype, device)
        raise NotImplementedError(f"{func} of a tensor that is only saved and loaded")

    def __repr__(self) -> str:  # type: ignore[override]
        """Shape and boxes."""
        return f"LocalShards({tuple(self.shape)}, {[view.box for view in self.views]})"

    def __create_write_items__(self, fqn: str, object: object) -> list[WriteItem]:
        """The boxes that this rank may write."""
        # Of a box on several ranks torch chooses one writer.
        if not self.is_saved:
            return []
        return [
            WriteItem(
                index=MetadataIndex(fqn, box.start),
                type=WriteItemType.SHARD,
                tensor_data=TensorWriteData(
                    chunk=_chunk(box),
                    properties=TensorProperties.create_from_tensor(tensor),
                    size=self.size(),
                ),
            )
            for tensor, box in self.views
        ]

    def __create_chunk_list__(self) -> list[ChunkStorageMetadata]:
        """The boxes that this rank reads."""
        return [_chunk(view.box) for view in self.views]

    def __get_tensor_shard__(self, index: MetadataIndex) -> torch.Tensor:
        """The view that begins at the index's offset."""
        # Disjoint boxes of one rank differ in their first index, so that it identifies them.
        for tensor, box in self.views:
            if box.start == index.offset:
                return tensor
        raise ValueError(f"no part of {index.fqn} begins at {index.offset}; got {self}")


def local_shards(
    views: Views,
    shapes: Mapping[str, Sequence[int]],
    rank: int,
    not_saved: Collection[str] = (),
) -> dict[str, LocalShards]:
    """Checkpoint entries of weights, or of optimizer state with their layout, by name.

    Args:
        views: this rank's; names without a slice on it may be absent.
        shapes: of the full tensors.
        rank: for messages.
        not_saved: names that other ranks save, cut along other boxes.

    Raises:
        LayoutError: boxes of a tensor overlap, are empty or reach beyond it.
        TransferError: a view has another shape than its box, or views of a tensor differ in dtype.
    """
    check_views(views, rank)
    tensor_dtypes(views)
    for name, parts in views.items():
        boxes, full = [view.box for view in parts], TensorSlice.full(shapes[name])
        if not all(box.volume and full.contains(box) for box in boxes) or not are_disjoint(boxes):
            raise LayoutError(
                f"boxes that overlap, are empty or reach beyond their tensor: got {boxes} of "
                f"{name!r} on rank {rank}, allowed disjoint ones inside {full.shape}; correct the "
                "views"
            )
    return {
        name: LocalShards(shapes[name], parts, name not in not_saved)
        for name, parts in views.items()
        if parts
    }


def _without_views(
    cls: type[LocalShards], shape: Sequence[int], dtype: torch.dtype, device: torch.device
) -> LocalShards:
    # A wrapper has the full tensor's shape, but no memory.
    shards: LocalShards = torch.Tensor._make_wrapper_subclass(
        cls, torch.Size(shape), dtype=dtype, device=device
    )
    return shards


def _chunk(box: TensorSlice) -> ChunkStorageMetadata:
    return ChunkStorageMetadata(torch.Size(box.start), torch.Size(box.shape))
