"""Shards of a rank in torch's checkpoints: saved as some boxes, staged, loaded as others."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import MetadataIndex
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from rlhf_runtime.reshard.errors import LayoutError, TransferError
from rlhf_runtime.reshard.local_shards import LocalShards, local_shards
from rlhf_runtime.reshard.slices import TensorSlice
from rlhf_runtime.reshard.views import View

from ...depth import examples

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")

STAGING = StagingOptions(
    use_pinned_memory=False,
    use_shared_memory=False,
    use_async_staging=False,
    use_non_blocking_copy=False,
)


@st.composite
def partitions(draw: st.DrawFn, box: TensorSlice) -> list[TensorSlice]:
    """Disjoint boxes that make up a box."""
    cuttable = [dim for dim, length in enumerate(box.shape) if length > 1]
    if not cuttable or draw(st.integers(0, 2)) == 0:
        return [box]
    dim = draw(st.sampled_from(cuttable))
    at = draw(st.integers(1, box.shape[dim] - 1))
    halves = []
    for start, length in ((box.start[dim], at), (box.start[dim] + at, box.shape[dim] - at)):
        half = TensorSlice(
            (*box.start[:dim], start, *box.start[dim + 1 :]),
            (*box.shape[:dim], length, *box.shape[dim + 1 :]),
        )
        halves += draw(partitions(half))
    return halves


@st.composite
def stored(draw: st.DrawFn, shape: tuple[int, ...], boxes: list[TensorSlice]) -> list[View]:
    """Room for the boxes: alone or in one storage, whole or with gaps, in any order of strides."""
    views, common = [], torch.full(shape, -1.0)
    for box in draw(st.permutations(boxes)):
        kind = draw(st.sampled_from(["common", "own", "transposed", "gaps"]))
        tensor = common[box.slices_in(TensorSlice.full(shape))]
        if kind == "own":
            tensor = torch.full(box.shape, -1.0)
        elif kind == "transposed":
            tensor = torch.full(box.shape[::-1], -1.0).permute(tuple(reversed(range(len(shape)))))
        elif kind == "gaps" and shape:
            tensor = torch.full((*box.shape[:-1], 2 * box.shape[-1]), -1.0)[..., ::2]
        views.append(View(tensor, box))
    return views


def values(shape: tuple[int, ...]) -> torch.Tensor:
    return torch.arange(float(torch.Size(shape).numel())).view(shape)


def part(full: torch.Tensor, box: TensorSlice) -> torch.Tensor:
    return full[box.slices_in(TensorSlice.full(tuple(full.shape)))]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=examples(40))
@given(data=st.data())
def test_any_boxes_are_loaded_from_any_others(tmp_path: Path, data: st.DataObject) -> None:
    """What is changed after the copy was made is not saved."""
    shape = tuple(data.draw(st.lists(st.integers(1, 5), max_size=3)))
    before, now = (
        data.draw(partitions(TensorSlice.full(shape)).flatmap(lambda boxes: stored(shape, boxes)))
        for _ in range(2)
    )
    full, stager = values(shape), DefaultStager(STAGING)
    for tensor, box in before:
        tensor.copy_(part(full, box))
    staged = stager.stage({"role": {"w": LocalShards(shape, before)}})
    for tensor, _ in before:
        tensor.zero_()
    folder = tempfile.mkdtemp(dir=tmp_path)
    save(staged, storage_writer=FileSystemWriter(folder), no_dist=True)
    stager.close()
    whole, room = torch.full(shape, -1.0), LocalShards(shape, now)
    for target in (whole, room):
        state = {"role": {"w": target}}
        load(state, storage_reader=FileSystemReader(folder), no_dist=True)
        assert state["role"]["w"] is target
    assert torch.equal(whole, full)
    assert all(torch.equal(tensor, part(full, box)) for tensor, box in now)


def test_a_storage_is_copied_once_however_many_shards_lie_in_it() -> None:
    fused = torch.arange(12.0).view(6, 2)
    views = {
        "q": [
            View(fused[:2], TensorSlice((0, 0), (2, 2))),
            View(fused[3:5], TensorSlice((2, 0), (2, 2))),
        ],
        "k": [
            View(fused[2:3], TensorSlice((0, 0), (1, 2))),
            View(fused[5:], TensorSlice((1, 0), (1, 2))),
        ],
    }
    shards = local_shards(views, {"q": (4, 2), "k": (2, 2)}, 0, not_saved={"k"})
    stager = DefaultStager(STAGING)
    staged = stager.stage(shards)
    stager.close()
    copies = [view for each in staged.values() for view in each.views]
    (memory,) = {copy.tensor.untyped_storage().data_ptr() for copy in copies}
    assert memory != fused.untyped_storage().data_ptr()
    assert copies[0].tensor.untyped_storage().nbytes() == fused.untyped_storage().nbytes()
    assert [c.tensor.tolist() for c in copies] == [
        view.tensor.tolist() for parts in views.values() for view in parts
    ]
    assert [c.box for c in copies] == [view.box for parts in views.values() for view in parts]
    assert (staged["q"].is_saved, staged["k"].is_saved) == (True, False)
    assert staged["k"].shape == (2, 2)


def test_of_a_parameter_nothing_is_kept_but_its_values() -> None:
    """What frameworks hang on parameters would be copied with each checkpoint."""
    bias = torch.nn.Parameter(torch.zeros(3))
    bias.owner = object()  # type: ignore[attr-defined]
    (view,) = LocalShards((3,), [View(bias, TensorSlice((0,), (3,)))]).views
    assert view.tensor.data_ptr() == bias.data_ptr()
    assert not view.tensor.requires_grad and not hasattr(view.tensor, "owner")


def test_what_others_save_is_loaded_only() -> None:
    view = View(torch.zeros(2), TensorSlice((1,), (2,)))
    shards = local_shards({"w": [view], "none": []}, {"w": (4,), "none": (4,)}, 0, {"w"})
    assert list(shards) == ["w"]
    assert shards["w"].__create_write_items__("w", shards["w"]) == []
    (chunk,) = shards["w"].__create_chunk_list__()
    assert (chunk.offsets, chunk.sizes) == ((1,), (2,))


def test_a_part_is_found_by_its_offset_whatever_its_number() -> None:
    views = [
        View(torch.zeros(2), TensorSlice((2,), (2,))),
        View(torch.ones(2), TensorSlice((0,), (2,))),
    ]
    shards = LocalShards((4,), views)
    assert shards.__get_tensor_shard__(MetadataIndex("w", (0,), 0)).tolist() == [1, 1]
    assert shards.__get_tensor_shard__(MetadataIndex("w", (2,), 7)).tolist() == [0, 0]
    with pytest.raises(ValueError, match="no part of w begins at"):
        shards.__get_tensor_shard__(MetadataIndex("w", (1,)))


def test_a_tensor_of_another_shape_is_refused(tmp_path: Path) -> None:
    save({"w": torch.zeros(4)}, storage_writer=FileSystemWriter(tmp_path), no_dist=True)
    shards = LocalShards((5,), [View(torch.zeros(4), TensorSlice((0,), (4,)))])
    with pytest.raises(CheckpointException, match="Size mismatch"):
        load({"w": shards}, storage_reader=FileSystemReader(tmp_path), no_dist=True)


@pytest.mark.parametrize(
    "boxes",
    [
        [TensorSlice((0, 0), (2, 3)), TensorSlice((1, 2), (2, 3))],
        [TensorSlice((2, 0), (3, 5))],
        [TensorSlice((0, 0), (0, 5))],
        [TensorSlice((0, 0), (1, 5)), TensorSlice((0, 0), (1, 5))],
    ],
    ids=["overlap", "beyond", "empty", "twice"],
)
def test_boxes_that_are_no_parts_are_refused(boxes: list[TensorSlice]) -> None:
    views = [View(torch.zeros(box.shape), box) for box in boxes]
    with pytest.raises(LayoutError, match=r"of 'w' on rank 3, allowed disjoint .* \(4, 5\)"):
        local_shards({"w": views}, {"w": (4, 5)}, 3)


def test_views_of_other_shapes_or_of_several_dtypes_are_refused() -> None:
    box, other = TensorSlice((0,), (2,)), TensorSlice((2,), (2,))
    with pytest.raises(TransferError, match="another shape"):
        local_shards({"w": [View(torch.zeros(3), box)]}, {"w": (4,)}, 0)
    mixed = [View(torch.zeros(2), box), View(torch.zeros(2).bfloat16(), other)]
    with pytest.raises(TransferError, match="differ in dtype"):
        local_shards({"w": mixed}, {"w": (4,)}, 0)


def test_nothing_is_computed_with_it() -> None:
    shards = LocalShards((2,), [View(torch.zeros(1), TensorSlice((1,), (1,)))])
    with pytest.raises(NotImplementedError, match=r"aten\.add"):
        shards + 1
    assert repr(shards) == "LocalShards((2,), [TensorSlice(start=(1,), shape=(1,))])"
