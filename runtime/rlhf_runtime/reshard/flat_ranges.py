"""Ranges of a flattened parameter, as boxes of the tensors that lie in it.

A distributed optimizer (ZeRO) cuts a rank's flattened parameters without regard to their rows: a
data rank has the state of elements a to b of one. Of a matrix these are at most a part of a row,
whole rows, and a part of a row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from torch import Tensor

from rlhf_runtime.reshard.errors import LayoutError
from rlhf_runtime.reshard.slices import TensorSlice
from rlhf_runtime.reshard.views import View, Views


class FlatShard(NamedTuple):
    """What a rank holds for a range of a flattened parameter, such as a moment of its optimizer."""

    tensor: Tensor
    """Its elements: of one dimension, contiguous, of any dtype."""
    start: int
    """The number of the first one in the parameter."""


def flat_range_views(parameter: Tensor, views: Views, shard: FlatShard) -> Views:
    """Views of a shard by name and box; names without an element in its range are left out.

    Args:
        parameter: the rank's storage, contiguous.
        views: what lies in the parameter, as views of it.
        shard: what is held for a range of it.

    Raises:
        LayoutError: the shard reaches beyond the parameter, or one of them is not as said.
    """
    _check_shard(parameter, shard)
    found: dict[str, list[View]] = {}
    for name, parts in views.items():
        for view in (part for part in parts if part.box.volume):
            _check_view(parameter, name, view)
            if inside := list(_inside(view, int(parameter.storage_offset()), shard)):
                found.setdefault(name, []).extend(inside)
    return found


def _inside(view: View, origin: int, shard: FlatShard) -> Iterator[View]:
    """The elements of a view that a shard has. Numbers count from the view's first element."""
    strides = view.tensor.stride()
    low = origin + shard.start - int(view.tensor.storage_offset())
    for part in _between(view.box.shape, strides, low, low + shard.tensor.numel()):
        at = sum(index * stride for index, stride in zip(part.start, strides, strict=True))
        offset = shard.tensor.storage_offset() + at - low
        start = tuple(map(sum, zip(view.box.start, part.start, strict=True)))
        yield View(
            shard.tensor.as_strided(part.shape, strides, offset), TensorSlice(start, part.shape)
        )


def _between(
    shape: Sequence[int], strides: Sequence[int], low: int, high: int
) -> Iterator[TensorSlice]:
    """Where in a strided tensor the elements numbered low to high (exclusive) of its storage are.

    What one index of the first dimension has is either wholly inside or it is cut: only the last
    one before those inside and the first one after them can be cut.
    """
    if not shape:
        if low <= 0 < high:
            yield TensorSlice((), ())
        return
    rows, *rest = shape
    span = 1 + sum((n - 1) * stride for n, stride in zip(rest, strides[1:], strict=True))
    step = max(strides[0], span)  # the stride of a single row means nothing
    first = min(max(-(-low // step), 0), rows)
    last = min(max((high - span) // step + 1, 0), rows)
    for row in sorted({first - 1, first, last} & set(range(rows))):
        if first <= row < last:
            yield TensorSlice((first, *(0,) * len(rest)), (last - first, *rest))
        else:
            for part in _between(rest, strides[1:], low - row * step, high - row * step):
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
    span, follows = 1, True
    for length, stride in zip(reversed(sizes), reversed(strides), strict=True):
        if length > 1:
            follows = follows and stride >= span
            span += (length - 1) * stride
    same = view.tensor.untyped_storage()._cdata == parameter.untyped_storage()._cdata
    first = view.tensor.storage_offset() - parameter.storage_offset()
    if not (same and follows and first >= 0 and first + span <= parameter.numel()):
        raise LayoutError(
            f"a view of {name!r} that is no part of the parameter, or whose rows do not follow one "
            f"another there: got shape {tuple(sizes)}, strides {strides}, first element {first}; "
            "pass slices of the parameter"
        )
