"""What ranks are sent around generation that lies elsewhere than training."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from rlhf_api.plan import GraphName
from rlhf_api.spec.resources import Device
from rlhf_flow.jobs.registry import build_algorithm
from rlhf_planner.plan import make_plan
from rlhf_planner.problem.devices import GIB, local_inventory
from rlhf_runtime.calls.requests import CallRequest
from rlhf_runtime.controller.dispatch import StepBackend, StepData
from rlhf_runtime.controller.steps import PassRunner
from rlhf_runtime.controller.worker_groups import HostGroup, WorkerGroup
from rlhf_runtime.controller.workers import Workers
from rlhf_runtime.hooks import noop

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


class Rows:
    """A data host that hands out references to nothing."""

    def options(self, num_returns: int) -> Rows:
        return self

    def remote(self, *_words: object) -> tuple[object, object]:
        return object(), object()


PAIRS: dict[str, Any] = {
    "data": {"train": {"builtin": "SortDigits", "preferences": {}}},
    "rewards": [],
}


@pytest.mark.parametrize(
    ("kind", "sections", "reads_samples"), [("DPO", PAIRS, False), ("OnlineDPO", {}, True)]
)
def test_calls_know_whether_responses_were_sampled(
    kind: str, sections: dict[str, Any], reads_samples: bool
) -> None:
    """Log-probabilities of the data's responses have no sampling temperature."""
    job = make_job(algorithm={"type": kind}, **sections)
    graphs, plan = make_plan(job, [local_inventory(1, 16 * GIB)])
    rank, rewards = Notes(), Notes()
    workers = SimpleNamespace(
        plan=plan,
        job=job,
        worker_groups={"local": WorkerGroup([rank]), None: HostGroup([rewards])},
        data=SimpleNamespace(batch=Rows()),
        incarnation="one",
        poll=noop,
    )
    PassRunner(cast(Workers, workers), graphs).train(build_algorithm(job, Device.CPU), 1)
    marks = {order.call.id: order.reads_samples for order in rank.orders if order.call.reads}
    assert {marks[name] for name in ("reference.log_probs", "actor.train")} == {reads_samples}


def test_two_generations_share_a_transition() -> None:
    """ReMax's, of which the second is greedy."""
    calls = ["actor.generate", "actor.generate#2", "actor.train"]
    first, _, _, engine = sent(calls, algorithm={"type": "ReMax"})
    assert engine == [("reshard", 0), ("generate", 0), ("generate", 0)]
    assert first == [("reshard", 0), ("train", 0)]
