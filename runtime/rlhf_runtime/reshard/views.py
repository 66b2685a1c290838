"""Views: a rank's own storage of its pieces, and the lookup of a plan's boxes in it.

Also views of a distributed optimizer's state. Such an optimizer (ZeRO) cuts a rank's flattened
parameters without regard to their rows: a data rank has the state of elements a to b of one. Of a
matrix these are at most a part of a row, full rows, and a part of a row.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from rlhf_runtime.reshard.errors import LayoutError, TransferError
from rlhf_runtime.reshard.slices import TensorSlice


class View(NamedTuple):
    """A slice of a tensor in its actual storage, such as rows of a fused or sharded parameter."""

    tensor: Tensor
    """The elements; any strides. Its shape is the box's."""
    box: TensorSlice
    """Position in the full tensor."""


Views = Mapping[str, Sequence[View]]
"""A rank's views by canonical name. A name may have several, or none."""


def check_views(views: Views, rank: int) -> None:
    """Refuse views whose tensors do not have the shape of their boxes.

    Raises:
        TransferError: names tensor and rank.
    """
    for name, parts in views.items():
        for tensor, box in parts:
            if tensor.shape != box.shape:
                raise TransferError(
                    f"view of another shape than its box: got {tuple(tensor.shape)} for {box} of "
                    f"{name!r} on rank {rank}; pass the local tensor, without padding"
                )


def slice_view(views: Views, name: str, box: TensorSlice, rank: int) -> Tensor:
    """The elements of a box within one of a rank's views of a tensor, sharing its storage.

    Raises:
        TransferError: no view contains the box entirely.
    """
    for tensor, outer in views.get(name, ()):
        if outer == box:
            return tensor.detach()
        if outer.contains(box):
            return tensor.detach()[box.slices_in(outer)]
    boxes = [view.box for view in views.get(name, ())]
    raise TransferError(
        f"the plan's {box} of {name!r} is not in a view of rank {rank}: got views of {boxes}; pass "
        "the views of the layout that was planned"
    )


def is_same_memory(one: Tensor, other: Tensor) -> bool:
    """True if two tensors are the same elements of the same storage, in the same order."""
    return (
        one.untyped_storage()._cdata == other.untyped_storage()._cdata  # also when it is freed
        and one.storage_offset() == other.storage_offset()
        and one.stride() == other.stride()
        and one.dtype == other.dtype
    )


def tensor_dtypes(views: Views) -> dict[str, torch.dtype]:
    """The dtype of each name.

    Raises:
        TransferError: a name's views differ in dtype.
    """
    dtypes = {}
    for name, parts in views.items():
        distinct = {view.tensor.dtype for view in parts}
        if len(distinct) > 1:
            raise TransferError(
                f"views of {name!r} differ in dtype: got {sorted(map(str, distinct))}; use one"
            )
        # Names without a view on this rank are left out.
        dtypes.update(dict.fromkeys([name] if distinct else [], *distinct))
    return dtypes


class FlatShard(NamedTuple):
    """A rank's tensor for a range of a flattened parameter, such as a moment of its optimizer."""

    tensor: Tensor
    """Its elements: of one dimension, contiguous, of any dtype."""
    start: int
    """Index of its first element in the flattened parameter."""


def flat_range_views(parameter: Tensor, views: Views, shard: FlatShard) -> Views:
    """Views of a shard by name and box; names without an element in its range are left out.

    Args:
        parameter: the rank's storage, contiguous.
        views: the weights in the parameter, as views of it.
        shard: a tensor for a range of it.

    Raises:
        LayoutError: the shard reaches beyond the parameter, or an argument is not as described.
    """
    _check_shard(parameter, shard)
    # Strides of a view map its boxes to the flat range, also where rows of several weights are
    # interleaved in one fused parameter.
    result: dict[str, list[View]] = {}
    for name, parts in views.items():
        for view in (part for part in parts if part.box.volume):
            _check_view(parameter, name, view)
            if inside := list(_views_inside(view, int(parameter.storage_offset()), shard)):
                result.setdefault(name, []).extend(inside)
    return result


def _views_inside(view: View, origin: int, shard: FlatShard) -> Iterator[View]:
    """The elements of a view that a shard has. Indices count from the view's first element."""
    strides = view.tensor.stride()
    low = origin + shard.start - int(view.tensor.storage_offset())
    for part in _boxes_between(view.box.shape, strides, low, low + shard.tensor.numel()):
        at = sum(index * stride for index, stride in zip(part.start, strides, strict=True))
        offset = shard.tensor.storage_offset() + at - low
        start = tuple(map(sum, zip(view.box.start, part.start, strict=True)))
        yield View(
            shard.tensor.as_strided(part.shape, strides, offset), TensorSlice(start, part.shape)
        )


def _boxes_between(
    shape: Sequence[int], strides: Sequence[int], low: int, high: int
) -> Iterator[TensorSlice]:
    """Boxes of a strided tensor whose elements are low to high (exclusive) of its storage."""
    if not shape:  # a single element, at index 0
        if low <= 0 < high:
            yield TensorSlice((), ())
        return
    rows, *rest = shape
    span = 1 + sum((n - 1) * stride for n, stride in zip(rest, strides[1:], strict=True))
    step = max(strides[0], span)  # the stride of a single row means nothing
    first = min(max(-(-low // step), 0), rows)
    last = min(max((high - span) // step + 1, 0), rows)
    # Rows first to last are inside. Only the one before them and the one after them can be cut.
    for row in sorted({first - 1, first, last} & set(range(rows))):
        if first <= row < last:
            yield TensorSlice((first, *(0,) * len(rest)), (last - first, *rest))
        else:
            for part in _boxes_between(rest, strides[1:], low - row * step, high - row * step):
                yield TensorSlice((row, *part.start), (1, *part.shape))


def _check_shard(parameter: Tensor, shard: FlatShard) -> None:
    if not parameter.is_contiguous() or shard.tensor.dim() != 1 or not shard.tensor.is_contiguous():
        raise LayoutError(
            "a parameter or a shard of it is not contiguous, or the shard is not flat: got shapes "
            f"{tuple(parameter.shape)} and {tuple(shard.tensor.shape)}; pass what the optimizer "
            "flattened and its range"
        )
    stop = shard.start + shard.tensor.numel()
    if shard.start < 0 or stop > parameter.numel():
        raise LayoutError(
            f"a shard beyond its parameter: got elements {shard.start} to {stop}, allowed 0 to "
            f"{parameter.numel()}; count within the parameter, not within its buffer"
        )


def _check_view(parameter: Tensor, name: str, view: View) -> None:
    """Refuse views of other storage, and those whose rows do not follow one another in it."""
    sizes, strides = view.tensor.shape, view.tensor.stride()
    span, is_ordered = 1, True
    for length, stride in zip(reversed(sizes), reversed(strides), strict=True):
        if length > 1:  # strides of dimensions of length 1 are arbitrary
            is_ordered = is_ordered and stride >= span
            span += (length - 1) * stride
    is_same = view.tensor.untyped_storage()._cdata == parameter.untyped_storage()._cdata
    first = view.tensor.storage_offset() - parameter.storage_offset()
    if not (is_same and is_ordered and first >= 0 and first + span <= parameter.numel()):
        raise LayoutError(
            f"a view of {name!r} that is no part of the parameter, or whose rows do not follow one "
            f"another there: got shape {tuple(sizes)}, strides {strides}, first element {first}; "
            "pass slices of the parameter"
        )
