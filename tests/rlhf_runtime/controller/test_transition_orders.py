"""What ranks are sent around generation that lies elsewhere than training."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

from rlhf_api.plan import GraphName
from rlhf_planner.plan import make_plan
from rlhf_planner.problem.devices import GIB, local_inventory
from rlhf_runtime.calls.requests import CallRequest
from rlhf_runtime.controller.dispatch import StepBackend, StepData
from rlhf_runtime.controller.worker_groups import WorkerGroup

from .jobs import make_job

PLACEMENT = {
    "type": "Manual",
    "groups": [
        {"roles": ["actor"], "devices": 2},
        {"roles": ["actor"], "calls": ["Generate"], "firstDevice": 3, "devices": 1},
    ],
}
"""Trained on {0,1}, generating on 3; nothing is on 2."""


class Notes:
    """A worker that runs nothing."""

    def __init__(self) -> None:
        self.orders: list[CallRequest] = []

    @property
    def run(self) -> Notes:
        return self

    def options(self, num_returns: int) -> Notes:
        return self

    def remote(self, header: bytes, own: bytes, *shards: Any) -> Any:
        self.orders.append(CallRequest.from_message(header, own))
        return self, self


def sent(calls: list[str], **sections: Any) -> list[list[tuple[str, int]]]:
    """What each of four ranks is sent in a pass: the methods, each with the updates before it."""
    job = make_job(placement=PLACEMENT, **sections)
    graphs, plan = make_plan(job, [local_inventory(4, 16 * GIB)])
    ranks, data = [Notes() for _ in range(4)], cast(StepData, None)
    backend = StepBackend(plan, {"local": WorkerGroup(ranks)}, data, GraphName.STEP, 1, "one")
    for call in calls:
        made = graphs[GraphName.STEP].call(call)
        bare = replace(made, reads=(), writes=(), carries=(), auxiliary_reads=())
        backend.run(bare, backend.no_rows())
    return [[(each.call.method, each.num_weight_changes) for each in rank.orders] for rank in ranks]


def test_each_rank_is_sent_what_runs_on_it_in_order() -> None:
    first, second, idle, engine = sent(["actor.generate", "compute", "actor.train"])
    assert first == second == [("reshard", 0), ("compute", 0), ("train", 0)]
    assert engine == [("reshard", 0), ("generate", 0)]
    assert idle == []


def test_a_call_is_told_how_many_before_it_have_changed_the_weights() -> None:
    """A step that generates again after an update: what it had before is of no use."""
    first, _, _, engine = sent(["actor.generate", "actor.train", "actor.generate"])
    assert engine == [("reshard", 0), ("generate", 0), ("reshard", 1), ("generate", 1)]
    assert first == [("reshard", 0), ("train", 0), ("reshard", 1)]


def test_calls_on_data_are_marked() -> None:
    """Their log-probabilities have no sampling temperature."""
    job = make_job(placement=PLACEMENT)
    graphs, plan = make_plan(job, [local_inventory(4, 16 * GIB)])
    ranks, data = [Notes() for _ in range(4)], cast(StepData, None)
    groups: dict[str | None, WorkerGroup] = {"local": WorkerGroup(ranks)}
    backend = StepBackend(
        *(plan, groups, data, GraphName.STEP, 1, "one"), calls_on_data=frozenset({"actor.train"})
    )
    for name in ("compute", "actor.train"):
        call = graphs[GraphName.STEP].call(name)
        bare = replace(call, reads=(), writes=(), carries=(), auxiliary_reads=())
        backend.run(bare, backend.no_rows())
    (first, *_) = ranks
    assert [(order.call.method, order.reads_samples) for order in first.orders] == [
        ("compute", True),
        ("train", False),
    ]


def test_two_generations_share_a_transition() -> None:
    """ReMax's, of which the second is greedy."""
    calls = ["actor.generate", "actor.generate#2", "actor.train"]
    first, _, _, engine = sent(calls, algorithm={"type": "ReMax"})
    assert engine == [("reshard", 0), ("generate", 0), ("generate", 0)]
    assert first == [("reshard", 0), ("train", 0)]
