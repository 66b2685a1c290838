"""Weights of which a rank holds boxes, as torch.distributed.checkpoint saves and loads them.

What is saved under one layout is loaded under any other: torch intersects the boxes that were saved
with those that a rank holds now, and reads straight into its views.
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
from rlhf_runtime.reshard.views import View, Views, check_views, dtypes_of


class LocalShards(torch.Tensor):
    """A tensor of which this rank holds some boxes, as views of any storage.

    Its shape is the full tensor's. Nothing is computed with it: it is a tensor because torch's
    planners of checkpoints keep nothing else apart by boxes, and speaks their `_Checkpointable`
    protocol. Ranks may hold the same boxes, of which one is saved. Boxes of two ranks that overlap
    otherwise are refused when they are saved, unless only one of the two saves.
    """

    views: tuple[View, ...]
    """What this rank holds; they are disjoint."""
    is_saved: bool
    """Whether this rank's boxes are saved; all are loaded."""

    @staticmethod
    def __new__(
        cls, shape: Sequence[int], views: Sequence[View], is_saved: bool = True
    ) -> LocalShards:
        """Of a tensor of this shape; see `local_shards` for what is refused."""
        first = views[0].tensor
        made = _without_views(cls, shape, first.dtype, first.device)
        made.views = tuple(View(view.tensor.detach(), view.box) for view in views)
        made.is_saved = is_saved
        return made

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # torch says less than it allows
        cls,
        func: Any,
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> LocalShards:
        """For the stager of checkpoints, which makes an empty one and copies the attributes."""
        if func is torch.ops.aten.new_empty.default:
            of, shape = args
            return _without_views(cls, shape, of.dtype, (kwargs or {}).get("device", of.device))
        raise NotImplementedError(f"{func} of a tensor that is only saved and loaded")

    def __repr__(self) -> str:  # type: ignore[override]
        """Shape and boxes."""
        return f"LocalShards({tuple(self.shape)}, {[view.box for view in self.views]})"

    def __create_write_items__(self, fqn: str, object: object) -> list[WriteItem]:
        """What of it this rank would write; torch lets one rank write what several hold."""
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
        """What of it this rank reads."""
        return [_chunk(view.box) for view in self.views]

    def __get_tensor_shard__(self, index: MetadataIndex) -> torch.Tensor:
        """The view that begins at the index's offset."""
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
    """What goes into a checkpoint of weights, or of what is cut like them, by name.

    Args:
        views: this rank's; names of which it holds nothing may be absent.
        shapes: of the full tensors.
        rank: for messages.
        not_saved: names that other ranks save, cut in another way.

    Raises:
        LayoutError: boxes of a tensor overlap, are empty or reach beyond it.
        TransferError: a view has another shape than its box, or views of a tensor differ in dtype.
    """
    check_views(views, rank)
    dtypes_of(views)
    for name, parts in views.items():
        boxes, whole = [view.box for view in parts], TensorSlice.full(shapes[name])
        if not all(box.volume and whole.contains(box) for box in boxes) or not are_disjoint(boxes):
            raise LayoutError(
                f"boxes that overlap, are empty or reach beyond their tensor: got {boxes} of "
                f"{name!r} on rank {rank}, allowed disjoint ones inside {whole.shape}; correct the "
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
    made: LocalShards = torch.Tensor._make_wrapper_subclass(
        cls, torch.Size(shape), dtype=dtype, device=device
    )
    return made


def _chunk(box: TensorSlice) -> ChunkStorageMetadata:
    return ChunkStorageMetadata(torch.Size(box.start), torch.Size(box.shape))
