"""A rank's own storage of its pieces, and how a plan's boxes are found in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from rlhf_runtime.reshard.errors import TransferError
from rlhf_runtime.reshard.slices import TensorSlice


class View(NamedTuple):
    """A part of a tensor where it really lies, such as rows of a fused or sharded parameter."""

    tensor: Tensor
    """The elements; any strides. Its shape is the box's."""
    box: TensorSlice
    """Where they lie in the full tensor."""


Views = Mapping[str, Sequence[View]]
"""A rank's views by canonical name. A name may have several, or none."""


def check_views(views: Views, rank: int) -> None:
    """Refuse views whose tensors do not have the shape of their boxes.

    Raises:
        TransferError: naming tensor and rank.
    """
    for name, parts in views.items():
        for tensor, box in parts:
            if tensor.shape != box.shape:
                raise TransferError(
                    f"view of another shape than its box: got {tuple(tensor.shape)} for {box} of "
                    f"{name!r} on rank {rank}; pass the local tensor, without padding"
                )


def part_of(views: Views, name: str, box: TensorSlice, rank: int) -> Tensor:
    """The elements of a box within one of a rank's views of a tensor, sharing its storage.

    Raises:
        TransferError: no view holds the box entirely.
    """
    for tensor, outer in views.get(name, ()):
        if outer == box:
            return tensor.detach()
        if outer.contains(box):
            return tensor.detach()[box.slices_in(outer)]
    held = [view.box for view in views.get(name, ())]
    raise TransferError(
        f"the plan's {box} of {name!r} is not in a view of rank {rank}: got views of {held}; pass "
        "the views of the layout that was planned"
    )


def is_same_memory(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors are the same elements of the same storage, in the same order."""
    return (
        one.untyped_storage()._cdata == other.untyped_storage()._cdata  # also when it is freed
        and one.storage_offset() == other.storage_offset()
        and one.stride() == other.stride()
        and one.dtype == other.dtype
    )


def dtypes_of(views: Views) -> dict[str, torch.dtype]:
    """The dtype of each name.

    Raises:
        TransferError: a name's views differ in dtype.
    """
    dtypes = {}
    for name, parts in views.items():
        found = {view.tensor.dtype for view in parts}
        if len(found) > 1:
            raise TransferError(
                f"views of {name!r} differ in dtype: got {sorted(map(str, found))}; use one"
            )
        dtypes.update(dict.fromkeys([name] if found else [], *found))
    return dtypes
