from pathlib import Path

import pytest
import torch

from rlhf_runtime.reshard.errors import TransferError
from rlhf_runtime.reshard.execute import PreparedTransfer, execute
from rlhf_runtime.reshard.layout import Layout, Piece
from rlhf_runtime.reshard.plan import plan_reshard
from rlhf_runtime.reshard.slices import TensorSlice, shard_slice
from rlhf_runtime.reshard.views import View

from ..world_of_processes import failures, start_world
from . import gloo_ranks as ranks
from . import gloo_views
from . import model_layouts as ml


@pytest.fixture(scope="module", params=[2, 4])
def gloo_world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with every rank's results, after all scenarios ran in a world of processes."""
    folder: Path = tmp_path_factory.mktemp(f"gloo{request.param}")
    return start_world(ranks.__name__, request.param, folder)


@pytest.mark.ray
@pytest.mark.parametrize("scenario", list(ranks.SCENARIOS))
def test_over_gloo(gloo_world: Path, scenario: str) -> None:
    assert not failures(gloo_world, scenario)


def test_a_world_of_one_copies_without_any_collective() -> None:
    shapes = gloo_views.shapes_of()
    full = gloo_views.full_weights(shapes)
    whole = ml.fully_sharded(shapes, 1)
    views = gloo_views.empty(whole, 0, gloo_views.mixed)
    stats = execute(plan_reshard(whole, whole), 0, gloo_views.filled(whole, 0, full), views)
    gloo_views.assert_equal(views, full)
    assert (stats.bytes_sent, stats.bytes_received, stats.peak_staging_bytes) == (0, 0, 0)
    assert stats.bytes_local == sum(v.tensor.nbytes for of_name in views.values() for v in of_name)


def test_the_same_memory_is_not_touched_even_while_it_is_freed() -> None:
    whole = Layout({"w": (4, 2)}, ((Piece("w", TensorSlice.full((4, 2))),),))
    tensor = torch.zeros(4, 2)
    views = {"w": [View(tensor, TensorSlice.full((4, 2)))]}
    tensor.untyped_storage().resize_(0)
    stats = execute(plan_reshard(whole, whole), 0, views, views)
    assert (stats.bytes_local, stats.bytes_aliased) == (0, 32)


def test_two_freed_tensors_are_not_the_same_memory() -> None:
    whole = Layout({"w": (4,)}, ((Piece("w", TensorSlice.full((4,))),),))
    source, target = torch.ones(4), torch.zeros(4)
    for tensor in (source, target):
        tensor.untyped_storage().resize_(0)
    box = TensorSlice.full((4,))
    transfer = PreparedTransfer(
        plan_reshard(whole, whole), 0, {"w": [View(source, box)]}, {"w": [View(target, box)]}
    )
    for tensor in (source, target):
        tensor.untyped_storage().resize_(16)
    source.fill_(3)
    transfer.run()
    assert target.tolist() == [3.0] * 4


def test_a_name_may_lie_in_several_views() -> None:
    halves = tuple(Piece("w", shard_slice((4, 2), 0, index, 2)) for index in range(2))
    whole = Layout({"w": (4, 2)}, ((Piece("w", TensorSlice.full((4, 2))),),))
    full = torch.arange(8.0).reshape(4, 2)
    fused = torch.zeros(6, 2)
    views = {"w": [View(fused[4:6], halves[0].box), View(fused[0:2], halves[1].box)]}
    plan = plan_reshard(whole, Layout({"w": (4, 2)}, (halves,)))
    execute(plan, 0, {"w": [View(full, TensorSlice.full((4, 2)))]}, views)
    assert fused.tolist() == [[4, 5], [6, 7], [0, 0], [0, 0], [0, 1], [2, 3]]


def test_views_that_do_not_fit_are_refused() -> None:
    box = TensorSlice.full((4,))
    whole = Layout({"w": (4,)}, ((Piece("w", box),),))
    plan, good = plan_reshard(whole, whole), {"w": [View(torch.zeros(4), box)]}
    with pytest.raises(TransferError, match=r"got \(5,\) for TensorSlice.* of 'w' on rank 0"):
        execute(plan, 0, {"w": [View(torch.zeros(5), box)]}, good)
    with pytest.raises(TransferError, match="of 'w' is not in a view of rank 0: got views of"):
        execute(plan, 0, good, {"w": [View(torch.zeros(2), TensorSlice((0,), (2,)))]})
