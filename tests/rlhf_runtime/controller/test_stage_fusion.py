"""A step whose last responses are finished by few engines: who is sent what, in which order, and
that every row reaches everybody once. Ranks here run a call when it is sent to them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlhf_api.calls import CallKind
from rlhf_api.mesh import Mesh
from rlhf_api.plan import GraphName, Plan
from rlhf_flow.step.calls import GenerateOptions
from rlhf_flow.trace.graph import Graph
from rlhf_planner.cost.fusion import Fusion, fused_plan
from rlhf_planner.plan import make_plan
from rlhf_planner.problem.devices import GIB, local_inventory
from rlhf_runtime.calls.ended_rows import ScoreCall
from rlhf_runtime.calls.inputs import CallInputs
from rlhf_runtime.calls.requests import CallRequest, returned_columns
from rlhf_runtime.controller import fetched_columns
from rlhf_runtime.controller.batch import Batch, ShardRef, as_batch
from rlhf_runtime.controller.dispatch import StepBackend, StepData
from rlhf_runtime.controller.fetched_columns import fetch_columns
from rlhf_runtime.controller.response_samples import ResponseColumns
from rlhf_runtime.controller.worker_groups import HostGroup, WorkerGroup
from rlhf_runtime.dataplane.columns import Column, Rows
from rlhf_runtime.dataplane.partition import BatchShape, RowSubset
from rlhf_runtime.dataplane.protocol import Coordinates
from rlhf_runtime.dataplane.shards import Shard, ShardIndex
from rlhf_runtime.hooks import Hook, noop

from ...depth import examples
from .jobs import make_job

FUSED = ("reward.score", "reference.log_probs", "critic.values")
SAMPLES = 2
SCORE_CALLS = (ScoreCall("reward.score", "reward"),)
HOST = -1


@dataclass(eq=False)
class Reference:
    """Stands for Ray's."""

    shard: Shard


@dataclass
class World:
    """What all workers know, and note."""

    plan: Plan
    ended: frozenset[int]
    """Rows whose responses end before few are left."""
    kept: dict[int, Rows] = field(default_factory=dict)
    """Rows that each engine goes on with."""
    sent: list[tuple[int, str, RowSubset]] = field(default_factory=list)
    """Rank, call and rows, in the order of sending."""
    score_calls: dict[str, tuple[ScoreCall, ...]] = field(default_factory=dict)
    """Calls that may be scored early, by the call that generates."""
    worked: dict[str, list[int]] = field(default_factory=dict)
    """Rows that some rank worked on, by call; those of one rank of each replica."""


class Worker:
    """A rank, or a host: it reads what its order lists, and compares it with what it should be."""

    def __init__(self, world: World, rank: int) -> None:
        self._world, self._rank = world, rank

    @property
    def run(self) -> Worker:
        return self

    def options(self, num_returns: int) -> Worker:
        return self

    def remote(self, header: bytes, own: bytes, *references: Reference) -> Any:
        request = CallRequest.from_message(header, own)
        self._world.sent.append((self._rank, request.call.id, request.subset))
        if request.score_calls:
            self._world.score_calls[request.call.id] = request.score_calls
        planned = self._world.plan.call(request.graph, request.call.id)
        assert planned is not None
        if planned.mesh is None:
            at = Coordinates(data=request.batch_slice.index, data_size=request.batch_slice.count)
        else:
            at = Coordinates.in_call(self._rank, planned.mesh, planned.source_mesh)
        if not request.batches[0].shape.num_rows:
            return "report"
        inputs = CallInputs(request, [each.shard for each in references], at)
        if request.call.kind is CallKind.GENERATE:
            return self._generate(request, inputs)
        rows = inputs.index.rows if request.call.kind is CallKind.FINISH else inputs.rows()
        for name, column in inputs.load(rows).items():
            assert column.values.tolist() == values(name, rows).tolist(), (request.call.id, name)
        if request.call.kind is CallKind.FINISH:
            rows = np.concatenate([self._world.kept[self._rank], rows[at.data :: at.data_size]])
        if at.tensor == at.pipeline == 0:
            self._world.worked.setdefault(request.call.id, []).extend(rows.tolist())
        made = shard_of(request, rows)
        return ("report", Reference(made)) if returned_columns(request.call) else "report"

    def _generate(self, request: CallRequest, inputs: CallInputs) -> Any:
        assert request.leaves_rows and isinstance(request.call.options, GenerateOptions)
        rows = (inputs.rows()[:, None] * SAMPLES + np.arange(SAMPLES)).reshape(-1)
        has_ended = np.isin(rows, list(self._world.ended))
        finish = next(call for call in self._world.plan.calls if call.kind is CallKind.FINISH)
        assert finish.mesh is not None
        left = rows[~has_ended]
        if self._rank in finish.mesh.ranks:
            self._world.kept[self._rank], left = left, left[:0]
        ended, rest = shard_of(request, rows[has_ended]), shard_of(request, left)
        return "report", Reference(ended), Reference(rest)


def values(name: str, rows: Rows) -> Rows:
    """What a column has in some rows of the batch that is generated; of a prompt's, its number."""
    found: Rows = rows // SAMPLES if name in PROMPT_COLUMNS else rows * 1009 + len(name)
    return found


PROMPT_COLUMNS = ("prompt_id", "prompt_tokens", "record")


def shard_of(request: CallRequest, rows: Rows) -> Shard:
    lengths = (1 + rows * 7919 % 37).astype(np.int32)
    names = returned_columns(request.call)
    index = ShardIndex(rows, rows // SAMPLES, lengths)
    return Shard(index, {name: Column(values(name, rows)) for name in names})


def planned(num_ranks: int, finish: Mesh, groups: list[dict[str, Any]]) -> tuple[Graph, Plan]:
    """PPO with a reference, fused."""
    job = make_job(
        algorithm={"type": "PPO", "ppo": {"klCoefficient": 0.1}},
        models={
            "actor": {"source": {"builtin": "TinyLlama"}},
            "critic": {"source": {"sameAs": "actor"}},
        },
        placement={"type": "Manual", "groups": groups},
        rollout={"samplesPerPrompt": SAMPLES, "maxPromptTokens": 8, "maxResponseTokens": 8},
    )
    graphs, plan = make_plan(job, [local_inventory(num_ranks, 64 * GIB)])
    graph = graphs[GraphName.STEP]
    return graph, fused_plan(plan, graph, Fusion("actor.generate", finish, 1, FUSED))


def run_step(
    graph: Graph,
    world: World,
    num_ranks: int,
    num_prompts: int,
    responses: ResponseColumns | None = None,
) -> Batch:
    """All calls of the step, as its function makes them."""
    hosts = HostGroup([Worker(world, HOST)])
    ranks = [Worker(world, rank) for rank in range(num_ranks)]
    groups = {"local": WorkerGroup(ranks), None: hosts}
    backend = StepBackend(world.plan, groups, cast(StepData, None), GraphName.STEP, 1, "one")
    backend.responses = responses
    backend.score_calls = {"actor.generate": SCORE_CALLS}
    numbers = np.arange(num_prompts, dtype=np.int64)
    shard = Shard(
        ShardIndex(numbers, numbers, np.ones(num_prompts, dtype=np.int32)),
        {name: Column(numbers) for name in PROMPT_COLUMNS},
    )
    held = [ShardRef(Reference(shard), range(num_prompts))]
    batch = as_batch(PROMPT_COLUMNS, held, BatchShape(num_prompts))
    for call in graph.calls:
        made = backend.run(call, batch)
        batch = made if call.kind is CallKind.GENERATE else batch | made
    backend.send_deferred()
    return batch


@settings(deadline=None, max_examples=examples(60))
@given(st.data())
def test_every_row_is_worked_on_once_by_every_call(data: st.DataObject) -> None:
    """Any numbers of engines that finish and of ranks of other roles; any rows end early."""
    actors, others = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 3))
    num_ranks, num_prompts = actors + others, data.draw(st.integers(1, 12))
    first = data.draw(st.integers(0, actors - 1))
    finish = Mesh(pool="local", first_rank=first, data=data.draw(st.integers(1, actors - first)))
    groups = [
        {"roles": ["actor"], "devices": actors},
        {"roles": ["reference", "critic"], "firstDevice": actors, "devices": others},
        {"roles": ["actor"], "calls": ["Generate"], "devices": num_ranks},
    ]
    graph, plan = planned(num_ranks, finish, groups)
    num_rows = num_prompts * SAMPLES
    world = World(plan, data.draw(st.frozensets(st.integers(0, num_rows - 1))))
    batch = run_step(graph, world, num_ranks, num_prompts)
    assert {*batch.column_names} >= {"critic_values", "reference_log_probs", "reward_scores"}
    everything = list(range(num_rows))
    left = [row for row in everything if row not in world.ended]
    assert sorted(world.worked.pop("actor.finish")) == left
    assert {*world.worked} == {call.id for call in graph.calls} - {"actor.generate"}
    for call, rows in world.worked.items():
        assert sorted(rows) == everything, call


def test_second_parts_are_sent_when_nothing_else_can_begin_early() -> None:
    """Rank 0 trains and finishes; rank 1 generates, and reads what has ended while it does."""
    groups = [
        {"roles": ["actor"], "devices": 1},
        {"roles": ["reference", "critic"], "firstDevice": 1, "devices": 1},
        {"roles": ["actor"], "calls": ["Generate"], "devices": 2},
    ]
    graph, plan = planned(2, Mesh(pool="local", data=1), groups)
    world = World(plan, frozenset({0, 1, 5}))
    run_step(graph, world, 2, 4)
    early, late, whole = RowSubset.FINISHED, RowSubset.UNFINISHED, RowSubset.ALL
    assert [each[1:] for each in world.sent if each[0] == 0] == [
        ("actor.reshard", whole),
        ("actor.generate", early),
        ("actor.finish", late),
        ("compute", whole),
        ("actor.train", whole),
    ]
    assert [each[1:] for each in world.sent if each[0] == 1] == [
        ("actor.reshard", whole),
        ("actor.generate", early),
        ("reference.log_probs", early),
        ("critic.values", early),
        ("reference.log_probs", late),
        ("critic.values", late),
        ("critic.train", whole),
    ]
    scoring = [each[2] for each in world.sent if each[1] == "reward.score"]
    assert scoring == [early, early, late], "shard by shard"
    both = ("actor.generate", "actor.finish")
    assert world.score_calls == dict.fromkeys(both, SCORE_CALLS), "whoever finishes a response"


def test_samples_have_the_rows_of_both_parts_of_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Responses and their scores: rows that ended early, and those that were finished later."""

    def fetch(references: Sequence[Reference], poll: Hook) -> list[Shard]:
        return [reference.shard for reference in references]

    monkeypatch.setattr(fetched_columns, "wait_for", fetch)
    groups = [
        {"roles": ["actor"], "devices": 1},
        {"roles": ["reference", "critic"], "firstDevice": 1, "devices": 1},
        {"roles": ["actor"], "calls": ["Generate"], "devices": 2},
    ]
    graph, plan = planned(2, Mesh(pool="local", data=1), groups)
    responses = ResponseColumns()
    run_step(graph, World(plan, frozenset({0, 1, 5})), 2, 4, responses)
    assert responses.batch is not None
    rows: Rows = np.arange(4 * SAMPLES, dtype=np.int64)
    columns = fetch_columns(responses.batch, ("response_text", "reward_scores"), rows, noop)
    for name, column in columns.load(rows).items():
        assert column.values.tolist() == values(name, rows).tolist(), name
