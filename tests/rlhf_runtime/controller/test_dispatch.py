import gc
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import ray

from rlhf_api.calls import CallKind
from rlhf_api.mesh import Mesh
from rlhf_api.plan import CallPlan, GraphName, Plan
from rlhf_flow.step.batch import BatchValue
from rlhf_flow.step.calls import ComputeOptions, ModelCall
from rlhf_flow.step.operations import Custom, Scope
from rlhf_planner.plan import make_plan, pools_of
from rlhf_runtime.calls.reports import merge_statistics
from rlhf_runtime.controller import results
from rlhf_runtime.controller.batch import Batch, ShardRef, as_batch
from rlhf_runtime.controller.dispatch import StepBackend
from rlhf_runtime.controller.worker_groups import HostGroup, WorkerGroup
from rlhf_runtime.dataplane.columns import Column
from rlhf_runtime.dataplane.partition import BatchShape
from rlhf_runtime.dataplane.shards import ShardIndex
from rlhf_runtime.errors import UnknownCall, WorkerRaised
from rlhf_runtime.rewards.errors import NothingScored
from rlhf_runtime.workers.process import resident_bytes

from .actors import METHODS, ToyRank, start
from .jobs import make_job

MEBIBYTE = 2**20
ray_test = pytest.mark.ray
"""Needs real Ray actors."""


def call_of(role: str, method: str, **parameters: int | str) -> ModelCall:
    reads, writes = METHODS[method]
    options = ComputeOptions((Custom(f"toy:{method}", reads, writes, parameters),))
    return ModelCall(
        f"{role}.{method}", role, method, CallKind.INFER, reads, writes, options=options
    )


def plan_of(meshes: dict[str, Mesh]) -> Plan:
    """A plan with every method of a toy rank for every role."""
    _, plan = make_plan(make_job(), pools_of(make_job(), 1))
    calls = tuple(
        CallPlan(
            graph=GraphName.STEP,
            call=f"{role}.{method}",
            role=role,
            method=method,
            kind=CallKind.INFER,
            mesh=mesh.model_copy(update={"pool": role}),
            reads=reads,
            writes=writes,
        )
        for role, mesh in meshes.items()
        for method, (reads, writes) in METHODS.items()
    )
    pool = plan.policy_pool
    pools = tuple(pool.model_copy(update={"name": role}) for role in meshes)
    return plan.model_copy(update={"calls": calls, "pools": pools})


def backend_of(**roles: tuple[Sequence[Any], Mesh]) -> StepBackend:
    """A step's backend; every role is played by the given workers as the given mesh."""
    for role, (workers, mesh) in roles.items():
        assert len(workers) == mesh.num_devices
        ray.get([worker.play.remote(role, rank, mesh) for rank, worker in enumerate(workers)])
    plan = plan_of({role: mesh for role, (_, mesh) in roles.items()})
    groups: dict[str | None, WorkerGroup] = {
        role: WorkerGroup(workers) for role, (workers, _) in roles.items()
    }
    return StepBackend(plan, groups, ToyData(), GraphName.STEP, 1, "one")


def prompts(worker: Any, num_rows: int) -> Batch:
    """Rows without groups of two: of three tokens and fewer."""
    shard = ShardRef(worker.prompts.remote(num_rows), range(num_rows))
    return as_batch(("tokens",), [shard], BatchShape(num_rows))


@pytest.fixture(scope="module")
def host(local_ray: None) -> Any:
    """A host that runs two calls at a time."""
    return ray.remote(ToyRank).options(num_cpus=0, max_concurrency=2).remote()


def with_host(backend: StepBackend, host: Any) -> StepBackend:
    """The backend, with a host that scores."""
    reads, writes = METHODS["score"]
    score = CallPlan(
        graph=GraphName.STEP,
        call="reward.score",
        role="reward",
        method="score",
        kind=CallKind.SCORE,
        mesh=None,
        reads=reads,
        writes=writes,
    )
    backend.plan = backend.plan.model_copy(update={"calls": (*backend.plan.calls, score)})
    backend.worker_groups = {**backend.worker_groups, None: HostGroup([host])}
    return backend


class ToyData:
    """A step's prompts, from a toy rank."""

    def __init__(self, worker: Any = None, num_rows: int = 0) -> None:
        self._worker = worker
        self._num_rows = num_rows
        self.taken: list[int] = []

    def prompts(self, number: int) -> tuple[Any, Batch]:
        self.taken.append(number)
        sent = self._worker.batch.options(num_returns=2).remote(self._num_rows, number)
        shard = ShardRef(sent[1], range(self._num_rows))
        return sent[0], as_batch(("tokens",), [shard], BatchShape(self._num_rows))

    def pretraining(self) -> tuple[Any, Batch]:
        raise AssertionError("no step here asks for it")


def sums_of(backend: StepBackend) -> dict[str, float]:
    """The sums of all calls so far."""
    return merge_statistics([report.statistics for report in backend.wait()])


@pytest.fixture
def columns_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process, the driver, raises when a column or an index comes to be in it."""

    def refuse(self: object) -> None:
        raise AssertionError(f"a {type(self).__name__} arrived in the driver")

    monkeypatch.setattr(Column, "__post_init__", refuse)
    monkeypatch.setattr(ShardIndex, "from_bytes", refuse)


@ray_test
@pytest.mark.parametrize("num_rows", [11, 1])
def test_a_column_of_two_ranks_is_aligned_at_one_two_and_three(
    workers: tuple[Any, ...], num_rows: int
) -> None:
    consumers = {
        f"critic{count}": (workers[4 - count :], Mesh(pool="a", data=count)) for count in (1, 2, 3)
    }
    backend = backend_of(actor=(workers[:2], Mesh(pool="a", data=2)), **consumers)
    batch = prompts(workers[0], num_rows)
    batch |= backend.run(call_of("actor", "double"), batch)
    assert len(batch.columns["doubled"].segments[0].shards) == 2
    backend.wait()
    for role in consumers:
        backend.run(call_of(role, "check"), batch)
        assert sums_of(backend) == {"rows": float(num_rows), "wrong": 0.0}


@ray_test
def test_tensor_and_pipeline_ranks_share_rows_and_only_one_is_collected(
    workers: tuple[Any, ...],
) -> None:
    backend = backend_of(
        actor=(workers, Mesh(pool="a", data=2, tensor=2)),
        critic=(workers[:2], Mesh(pool="a", data=1, pipeline=2)),
    )
    batch = prompts(workers[0], 8)
    batch |= backend.run(call_of("actor", "double"), batch)
    assert len(batch.columns["doubled"].segments[0].shards) == 2
    assert len(backend.wait()) == 4
    backend.run(call_of("critic", "check"), batch)
    assert sums_of(backend) == {"rows": 16.0, "wrong": 0.0}


@ray_test
@pytest.mark.usefixtures("columns_refused")
def test_the_drivers_memory_does_not_grow_with_the_batch(workers: tuple[Any, ...]) -> None:
    backend = backend_of(
        actor=(workers[:2], Mesh(pool="a", data=2)), critic=(workers[2:], Mesh(pool="a", data=2))
    )
    num_rows = 100

    def growth(num_bytes: int) -> int:
        """Of the driver, in bytes, when a column of that size goes from group to group."""
        gc.collect()
        before = resident_bytes()
        batch = prompts(workers[0], num_rows)
        row_bytes = num_bytes // num_rows
        wide = backend.run(call_of("actor", "widen", row_bytes=row_bytes), batch)
        backend.run(call_of("critic", "total"), batch | wide)
        total = num_rows * (num_rows - 1) / 2
        assert sums_of(backend) == {"bytes": float(num_bytes), "total": total}
        return resident_bytes() - before

    growth(10**6)  # connections and buffers of the first use
    small, large = growth(10**6), growth(200 * 10**6)
    assert large - small < 4 * MEBIBYTE


@ray_test
def test_what_a_driver_would_have_unpickled_is_noticed(
    workers: tuple[Any, ...], columns_refused: None
) -> None:
    (held,) = prompts(workers[0], 3).base
    (shard,) = held.shards
    with pytest.raises(Exception, match="a Column arrived in the driver"):
        ray.get(shard.reference)


@ray_test
@pytest.mark.timeout(120)
def test_calls_on_disjoint_ranks_overlap(workers: tuple[Any, ...], tmp_path: Path) -> None:
    """Each ends only once the other has begun."""
    one, other = str(tmp_path / "one"), str(tmp_path / "other")
    mesh = Mesh(pool="a", data=1)
    backend = backend_of(actor=(workers[:1], mesh), critic=(workers[1:2], mesh))
    batch = prompts(workers[2], 4)
    backend.run(call_of("actor", "meet", own=one, other=other), batch)
    backend.run(call_of("critic", "meet", own=other, other=one), batch)
    assert sums_of(backend) == {"met": 2.0}


@ray_test
@pytest.mark.timeout(120)
@pytest.mark.parametrize("last", [0, 1])
def test_a_ranks_answers_are_scored_while_another_generates(
    workers: tuple[Any, ...], host: Any, tmp_path: Path, last: int
) -> None:
    """Whichever is the last one: its call ends only once the other's answers have been scored."""
    backend = with_host(backend_of(actor=(workers[:2], Mesh(pool="a", data=2))), host)
    batch, told = prompts(workers[2], 5), str(tmp_path / "scored")
    generate = replace(call_of("actor", "answer", last=last, scored=told), kind=CallKind.GENERATE)
    batch |= backend.run(generate, batch)
    made = backend.run(replace(call_of("reward", "score", scored=told), kind=CallKind.SCORE), batch)
    assert len(made.nonempty_shards("scored")) == 2
    assert sums_of(backend) == {"rows": 5.0, "valid": 5.0}


@ray_test
@pytest.mark.timeout(120)
def test_a_rank_that_raises_ends_the_wait_while_another_blocks(
    workers: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results, "DEATH_SECONDS", 1.0)  # of a death that does not come
    doomed = start(2)
    try:
        backend = backend_of(actor=(doomed, Mesh(pool="a", data=2)))
        batch = prompts(workers[0], 4)
        result = backend.run(call_of("actor", "fail"), batch)
        backend.run(call_of("actor", "check"), batch | result)
        with pytest.raises(WorkerRaised, match="ZeroDivisionError: rank 0 is lost"):
            backend.wait()
    finally:
        for worker in doomed:
            ray.kill(worker)


def test_a_call_that_is_not_in_the_plan_is_refused_before_it_is_sent() -> None:
    backend = StepBackend(
        plan_of({"actor": Mesh(pool="a", data=1)}), {}, ToyData(), GraphName.STEP, 1, "one"
    )
    with pytest.raises(UnknownCall, match=r"the step called critic\.check"):
        backend.run(call_of("critic", "check"), Batch((), {}, BatchShape(0)))
    assert backend.reports == []


def test_a_call_of_another_graph_is_not_in_the_plan() -> None:
    backend = StepBackend(
        plan_of({"actor": Mesh(pool="a", data=1)}), {}, ToyData(), GraphName.EVALUATION, 1, "one"
    )
    with pytest.raises(UnknownCall, match=r"actor\.check"):
        backend.run(call_of("actor", "check"), Batch((), {}, BatchShape(0)))


@pytest.mark.parametrize(("step", "ran"), [(1, 0), (4, 1), (6, 0), (8, 1)])
def test_every_runs_its_body_on_multiples(step: int, ran: int) -> None:
    backend = StepBackend(
        plan_of({"actor": Mesh(pool="a", data=1)}), {}, ToyData(), GraphName.STEP, step, "one"
    )
    done: list[int] = []
    backend.every("every-4", 4, lambda: done.append(step))
    assert len(done) == ran


@ray_test
@pytest.mark.parametrize(("wanted", "rounds"), [(5, 1), (6, 2), (11, 3), (99, 3)])
def test_rows_are_collected_until_they_suffice(
    workers: tuple[Any, ...], wanted: int, rounds: int
) -> None:
    """Five fresh prompts a round, on three ranks; then another two read the rows of all rounds."""
    backend = backend_of(
        actor=(workers[:3], Mesh(pool="a", data=3)), critic=(workers[2:], Mesh(pool="a", data=2))
    )
    data = backend.data = ToyData(workers[0], 5)
    asked: list[int] = []

    def until(rows: BatchValue) -> Batch:
        assert isinstance(rows, Batch)
        asked.append(rows.shape.num_rows)
        enough = Custom("toy:enough", ["sampled"], ["enough"], {"rows": wanted}, Scope.BATCH)
        call = replace(call_of("actor", "enough"), options=ComputeOptions((enough,)))
        return backend.run(call, rows)

    rows = backend.repeat(
        "repeat", lambda fresh: backend.run(call_of("actor", "sample"), fresh), until, 3, 1.5
    )
    assert rows.shape == BatchShape(5 * rounds) and data.taken == list(range(rounds))
    assert asked == [5, 10][:rounds], "the last round's rows are taken as they are"
    assert backend.rounds == {"repeat": rounds}
    backend.run(call_of("critic", "add"), rows)
    total = sum(10_100 * number + row for number in range(rounds) for row in range(5))
    assert sums_of(backend) == {"rows": 5.0 * rounds, "total": total}


@ray_test
def test_a_round_of_which_nothing_was_scored_is_the_last(
    workers: tuple[Any, ...], host: Any
) -> None:
    backend = with_host(backend_of(actor=(workers[:2], Mesh(pool="a", data=2))), host)
    data = backend.data = ToyData(workers[0], 4)
    enough = call_of("actor", "enough", rows=99)

    def body(fresh: BatchValue) -> Batch:
        rows = backend.run(call_of("actor", "sample"), fresh).rename(sampled="answers")
        score = replace(call_of("reward", "score", scored=""), kind=CallKind.SCORE)
        return rows | backend.run(score, rows)

    with pytest.raises(NothingScored, match="errors of toy for all 4 responses of step 1"):
        backend.repeat(
            "repeat",
            body,
            lambda rows: backend.run(enough, rows.rename(answers="sampled")),
            *(2, 1.5),
        )
    assert data.taken == [0]


@ray_test
def test_who_waits_for_a_round_hears_of_what_went_wrong_before() -> None:
    doomed = start(2)
    try:
        backend = backend_of(actor=(doomed, Mesh(pool="a", data=2)))
        backend.data = ToyData(doomed[0], 4)
        with pytest.raises(WorkerRaised, match="ZeroDivisionError: rank 0 is lost"):
            backend.repeat(
                "repeat",
                lambda fresh: backend.run(call_of("actor", "fail"), fresh),
                lambda rows: backend.run(
                    call_of("actor", "enough"), rows.rename(doubled="sampled")
                ),
                2,
                1.5,
            )
    finally:
        for worker in doomed:
            ray.kill(worker)
