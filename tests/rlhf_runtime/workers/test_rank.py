from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from rlhf_api.plan import CallKind, GraphName
from rlhf_flow.calls import ModelCall
from rlhf_flow.planning.make_plan import make_plan, pools_of
from rlhf_runtime.dataplane.shards import ShardIndex
from rlhf_runtime.errors import ModelNotSaved, UnknownCall, WorkerLost
from rlhf_runtime.workers import rank as rank_module
from rlhf_runtime.workers.orders import Order
from rlhf_runtime.workers.rank import Rank
from rlhf_runtime.workers.setup import RankSetup

from ...small_disk import small_disk
from ..controller.jobs import make_job

INDEX = ShardIndex(np.arange(2), np.arange(2), np.ones(2, dtype=np.int32)).message()


@pytest.fixture
def rank(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Rank:
    """Rank 0 of incarnation `new`, in this process: it keeps its output and has no world."""
    monkeypatch.setattr(rank_module, "settle", lambda *arguments: None)
    job = make_job()
    _, plan = make_plan(job, pools_of(job, 1))
    return Rank(
        RankSetup(
            job=job,
            plan=plan,
            pool="local",
            rank=0,
            one_machine=True,
            timeout_seconds=1.0,
            num_threads=1,
            incarnation="new",
            log_file=tmp_path / "rank-0.log",
            python_path=(),
        )
    )


def order_of(call: str, incarnation: str) -> Order:
    model_call = ModelCall(call, "actor", "log_probs", CallKind.INFER, (), ("log_probs",))
    return Order(model_call, 1, GraphName.STEP, incarnation)


def test_a_message_of_another_incarnation_is_refused(rank: Rank) -> None:
    with pytest.raises(WorkerLost, match="for incarnation old, this rank belongs to new"):
        rank.run(*order_of("actor.generate", "old").message([INDEX]))


class Large:
    """A role whose model takes 4 MiB."""

    def __init__(self) -> None:
        self.model = self

    def save(self, folder: Path, dtype: torch.dtype) -> None:
        save_file({"weight": torch.zeros(1 << 20, dtype=dtype)}, folder / "model.safetensors")


def test_a_model_that_cannot_be_written_is_told(rank: Rank, tmp_path: Path) -> None:
    rank._roles["actor"] = Large()
    with (
        small_disk(tmp_path / "disk", mebibytes=1) as disk,
        pytest.raises(ModelNotSaved, match="(?s)No space left on device.*the newest checkpoint"),
    ):
        rank.save("actor", disk.seen, "float32")


def test_a_call_that_the_plan_does_not_have_is_refused(rank: Rank) -> None:
    with pytest.raises(UnknownCall, match=r"the plan has no call actor\.log_probs#7 in Step"):
        rank.run(*order_of("actor.log_probs#7", "new").message([INDEX]))
