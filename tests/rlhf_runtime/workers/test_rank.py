from pathlib import Path
from types import SimpleNamespace
from typing import Any, Protocol

import pytest
import torch
from safetensors.torch import save_file

from rlhf_api.calls import CallKind
from rlhf_api.plan import GraphName, OffloadDepth
from rlhf_flow.step.calls import ModelCall
from rlhf_planner.plan import make_plan, pools_of
from rlhf_runtime.calls.requests import CallRequest, InputBatch
from rlhf_runtime.checkpoint import saver
from rlhf_runtime.data.character_tokenizer import write_tokenizer
from rlhf_runtime.dataplane.partition import BatchShape
from rlhf_runtime.errors import ModelNotSaved, UnknownCall, WorkerLost
from rlhf_runtime.python_path import NO_CODE
from rlhf_runtime.roles import role_classes, saving
from rlhf_runtime.roles.context import RoleContext
from rlhf_runtime.workers import rank as rank_module
from rlhf_runtime.workers.rank import Rank
from rlhf_runtime.workers.setup import RankSetup

from ...small_disk import small_disk
from ..controller.jobs import make_job

APART: dict[str, Any] = {
    "algorithm": {"type": "PPO"},
    "placement": {
        "type": "Manual",
        "groups": [{"roles": ["critic"]}, {"roles": ["actor"], "firstDevice": 1}],
    },
}
"""A critic on both of two devices, the policy on the second."""


class MakeRank(Protocol):
    def __call__(self, number: int, sections: dict[str, Any]) -> Rank: ...


@pytest.fixture
def make_rank(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> MakeRank:
    """Ranks of incarnation `new`, in this process: they keep its output and have no world."""
    monkeypatch.setattr(rank_module, "configure_process", lambda *arguments: None)

    def make(number: int, sections: dict[str, Any]) -> Rank:
        job = make_job(**sections)
        _, plan = make_plan(job, pools_of(job))
        return Rank(
            RankSetup(
                job=job,
                plan=plan,
                pool="local",
                rank=number,
                one_machine=True,
                timeout_seconds=1.0,
                num_threads=1,
                incarnation="new",
                log_file=tmp_path / f"rank-{number}.log",
                python_path=NO_CODE,
            )
        )

    return make


@pytest.fixture
def rank(make_rank: MakeRank) -> Rank:
    return make_rank(0, {})


def order_of(call: str, incarnation: str) -> CallRequest:
    model_call = ModelCall(call, "actor", "log_probs", CallKind.INFER, (), ("log_probs",))
    return CallRequest(model_call, 1, GraphName.STEP, incarnation, (InputBatch(BatchShape(2)),))


def test_a_message_of_another_incarnation_is_refused(rank: Rank) -> None:
    with pytest.raises(WorkerLost, match="for incarnation old, this rank belongs to new"):
        rank.run(*order_of("actor.generate", "old").to_message([]))


class Fragile:
    """A role whose first call fails."""

    def __init__(self) -> None:
        self.calls = 0
        self.methods = {"log_probs": self.log_probs}

    def log_probs(self, _: object) -> object:
        self.calls += 1
        raise ZeroDivisionError("the first") if self.calls == 1 else KeyError("a consequence")


def test_after_a_call_that_failed_none_is_run_and_each_tells_the_cause(rank: Rank) -> None:
    rank._roles["actor"] = role = Fragile()
    for _ in range(2):
        with pytest.raises(ZeroDivisionError, match="the first"):
            rank.run(*order_of("actor.generate", "new").to_message([]))
    assert role.calls == 1
    with pytest.raises(ZeroDivisionError, match="the first"):
        rank.begin_save("nowhere", 1)


class Large:
    """A role whose model takes 4 MiB, and its engine."""

    offloaded = OffloadDepth.NOTHING

    def __init__(self) -> None:
        self.engine = self

    def save(self, folder: Path, dtype: torch.dtype) -> None:
        save_file({"weight": torch.zeros(1 << 20, dtype=dtype)}, folder / "model.safetensors")


def test_a_model_that_cannot_be_written_is_told(rank: Rank, tmp_path: Path) -> None:
    rank._roles["actor"] = Large()
    with (
        small_disk(tmp_path / "disk", mebibytes=1) as disk,
        pytest.raises(ModelNotSaved, match="(?s)No space left on device.*the newest checkpoint"),
    ):
        rank.save("actor", disk.seen, "float32")


class Trying:
    """A role, its engines and its generation: notes what is asked of it."""

    offloaded = OffloadDepth.EVERYTHING

    def __init__(self, trains: bool, generates: bool) -> None:
        self.engine = self if trains else None
        self.generation = self if generates else None
        self.asked: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name not in ("load", "offload", "sync_initial_weights", "generate_first_token"):
            raise AttributeError(name)
        return lambda *_: self.asked.append(name)


@pytest.mark.parametrize(
    ("trains", "generates", "asked"),
    [
        (True, True, ["load", "sync_initial_weights", "offload", "generate_first_token"]),
        (False, True, ["sync_initial_weights", "generate_first_token"]),
        (True, False, []),
    ],
)
def test_the_first_token_is_generated_where_the_trainer_may_have_left_its_device(
    rank: Rank, trains: bool, generates: bool, asked: list[str]
) -> None:
    rank._roles["actor"] = role = Trying(trains, generates)
    rank.generate_first_token()
    assert role.asked == asked


def test_every_role_excludes_the_tokens_that_the_policys_tokenizer_lacks(
    make_rank: MakeRank, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Also a role whose folder has no tokenizer."""
    with_tokenizer, without = tmp_path / "one", tmp_path / "other"
    for folder in (with_tokenizer, without):
        folder.mkdir()
        (folder / "config.json").write_text('{"vocab_size": 71}')
    write_tokenizer(with_tokenizer)
    rank, built = make_rank(1, APART), dict[str, tuple[range, ...]]()
    roles = rank._setup.plan.roles
    contexts: dict[Any, Any] = {role.mesh: object() for role in roles if role.mesh is not None}
    rank._contexts, rank._rank_groups = contexts, {}
    rank._world = None  # type: ignore[assignment]

    def make_role(context: RoleContext) -> SimpleNamespace:
        built[context.role] = context.excluded_tokens
        return SimpleNamespace(engine=None, methods={})

    monkeypatch.setattr(role_classes, "make_role", make_role)
    monkeypatch.setattr(saver, "Saver", lambda world: None)
    folders = {role.role: without for role in roles}
    rank.build(folders | {"actor": with_tokenizer})
    assert built.keys() == {"actor", "critic"}
    assert set(built.values()) == {(range(64, 71),)}


def test_a_call_that_the_plan_does_not_have_is_refused(rank: Rank) -> None:
    with pytest.raises(UnknownCall, match=r"the plan has no call actor\.log_probs#7 in Step"):
        rank.run(*order_of("actor.log_probs#7", "new").to_message([]))


@pytest.mark.parametrize(("number", "kept"), [(0, {}), (1, {"multiplier": 0.5})])
def test_what_operations_keep_comes_back_only_where_they_run(
    make_rank: MakeRank, monkeypatch: pytest.MonkeyPatch, number: int, kept: dict[str, float]
) -> None:
    """Elsewhere it would not change any more, and be saved again as it was."""

    def restore(models: Any, operations: Any, world: Any, address: str, pool: str) -> None:
        if operations is not None:
            operations["multiplier"] = 0.5

    monkeypatch.setattr(saving, "restore", restore)
    rank = make_rank(number, APART)
    rank._world = None  # type: ignore[assignment]
    rank.restore("address")
    assert rank._operations == kept
