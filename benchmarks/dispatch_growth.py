"""How the driver's work grows with the ranks: a step's calls, sent to actors and to nobody."""

from __future__ import annotations

import pickle
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ray
from outcome import bound, note, print_json, print_table

from rlhf_api.calls import CallKind
from rlhf_api.mesh import Mesh
from rlhf_api.plan import GraphName
from rlhf_flow.step.calls import GenerateOptions, ModelCall
from rlhf_runtime.calls.requests import CallRequest, InputBatch
from rlhf_runtime.controller.batch import ShardRef, as_batch
from rlhf_runtime.controller.worker_groups import HostGroup, WorkerGroup
from rlhf_runtime.dataplane.partition import BatchShape
from rlhf_runtime.workers.process import resident_bytes

ACTORS = (2, 8, 32, 64)
SIMULATED = 1024
PROMPTS_PER_RANK, SAMPLES, MINI_BATCHES = 8, 8, 4
MILLISECONDS_PER_RANK = 0.2
"""Of the driver, for one call, beyond what bare Ray takes for as many references: at most."""
GROWTH_MIB = 8.0
"""Of the driver's memory over the later half of the simulated steps: at most."""

GENERATE = ModelCall(
    id="generate",
    role="actor",
    method="generate",
    kind=CallKind.GENERATE,
    reads=("prompt",),
    writes=("response",),
    carries=("prompt",),
    options=GenerateOptions(SAMPLES),
)
SCORE = ModelCall("score", "reward", "score", CallKind.SCORE, ("response",), ("scores",))
INFER = ModelCall(
    "infer", "reference", "log_probs", CallKind.INFER, ("prompt", "response"), ("log_probs",)
)
COMPUTE = ModelCall(
    "compute", None, "compute", CallKind.COMPUTE, ("log_probs", "scores"), ("advantages",)
)
TRAIN = ModelCall(
    "train", "actor", "train", CallKind.TRAIN, ("advantages", "log_probs", "prompt", "response"), ()
)
STEP = (GENERATE, SCORE, INFER, COMPUTE, TRAIN)


@dataclass(frozen=True)
class Growth:
    """What was measured, by ranks."""

    milliseconds: Mapping[str, Mapping[str, float]]
    """Of the driver's processor, for each rank, by call: medians."""
    bare: Mapping[str, Mapping[str, float]]
    """The same of bare Ray, with as many references, where there are actors."""
    references: Mapping[str, Mapping[str, float]]
    """For each rank, by call."""
    grown_mebibytes: float
    """By which the driver's memory grew in the later half of the simulated steps."""


class Listener:
    """Answers every call at once, whatever it is sent."""

    def __init__(self, _rank: int) -> None:
        pass

    def run(self, *_message: Any) -> tuple[bytes, bytes]:
        """Two results, as a call that writes has."""
        return b"", b""


class Simulated:
    """A worker's handle without a worker: counts the references that it is sent."""

    def __init__(self) -> None:
        self.references = 0

    @property
    def run(self) -> Simulated:
        """The method's handle."""
        return self

    def options(self, num_returns: int) -> Simulated:
        """The same: nobody reads its results."""
        return self

    def remote(self, _header: bytes, _own: bytes, *shards: Any) -> tuple[object, object]:
        """One call."""
        self.references += len(shards)
        return object(), object()


Sent = tuple[dict[str, float], list[Any]]
"""The driver's seconds by call, and references to all results."""


@dataclass
class Sender:
    """Sends steps to a group of ranks and a host."""

    ranks: WorkerGroup
    host: HostGroup
    anything: Any
    """A reference that stands for what the data host gives."""

    def step(self, sent: Callable[[str], None] = lambda _: None) -> Sent:
        """Send a step.

        Args:
            sent: told the name of each call after it was sent.
        """
        size = len(self.ranks.workers)
        shape = BatchShape(PROMPTS_PER_RANK * size)
        prompts = ShardRef(self.anything, range(shape.num_rows))
        batch = as_batch(("prompt",), [prompts], shape)
        seconds: dict[str, float] = {}
        results: list[Any] = []
        for call in STEP:
            is_score = call.kind is CallKind.SCORE
            parts = MINI_BATCHES if call is TRAIN else 1
            batches = (InputBatch(batch.shape),)
            request = CallRequest(call, 1, GraphName.STEP, "benchmark", batches, parts)
            mesh = None if is_score else Mesh(pool="ranks", data=size)
            begin = time.thread_time()
            submitted = (self.host if is_score else self.ranks).submit(request, [batch], mesh)
            seconds[call.id] = time.thread_time() - begin
            sent(call.id)
            results += submitted.reports
            if submitted.result is not None:
                batch = submitted.result if call is GENERATE else batch | submitted.result
        return seconds, results

    def milliseconds(self, rounds: Sequence[Mapping[str, float]]) -> dict[str, float]:
        """For each rank, by call that goes to all of them: medians of rounds."""
        return {
            call.id: 1000 * statistics.median(r[call.id] for r in rounds) / len(self.ranks.workers)
            for call in STEP
            if call is not SCORE
        }


def measure_growth(rounds: int, actors: Sequence[int], simulated: int) -> Growth:
    """Send steps to actors, in a Ray instance that is there, and to simulated ranks.

    Args:
        rounds: steps of each group.
        actors: of each group.
        simulated: ranks.
    """
    milliseconds, bare, references = {}, {}, {}
    for size in actors:
        name = f"{size} actors"
        note(f"{rounds} steps of {name}")
        references[name] = references_of(size)
        milliseconds[name], bare[name] = _to_actors(size, rounds, references[name])
    name = f"{simulated} simulated"
    note(f"{rounds} steps of {name} ranks")
    milliseconds[name], grown = _to_nobody(simulated, rounds)
    references[name] = references_of(simulated)
    return Growth(milliseconds, bare, references, grown)


def _to_actors(
    size: int, rounds: int, references: Mapping[str, float]
) -> tuple[dict[str, float], dict[str, float]]:
    """Milliseconds of the controller and of bare Ray, in turns."""
    remote = ray.remote(Listener).options(num_cpus=0, max_restarts=0, max_task_retries=0)
    actors = [remote.remote(rank) for rank in range(size + 1)]
    sender = Sender(WorkerGroup(actors[:size]), HostGroup(actors[size:]), ray.put(b""))
    found, bare = [], []
    for _ in range(rounds + 2):  # the first ones connect
        seconds, results = sender.step()
        ray.get(results)
        found.append(seconds)
        bare.append(_bare_step(actors[:size], references))
    for actor in actors:
        ray.kill(actor)
    return sender.milliseconds(found[2:]), sender.milliseconds(bare[2:])


def _bare_step(actors: Sequence[Any], references: Mapping[str, float]) -> dict[str, float]:
    """Seconds of bare Ray for as many calls with as many references."""
    objects = [ray.put(b"") for _ in range(round(max(references.values())))]
    seconds = {}
    for call in STEP:
        header, given = pickle.dumps(call), objects[: round(references[call.id])]
        methods = [actor.run.options(num_returns=1 if call is TRAIN else 2) for actor in actors]
        begin = time.thread_time()
        sent = [method.remote(header, b"", *given) for method in methods]
        seconds[call.id] = time.thread_time() - begin
        ray.get([each if call is TRAIN else each[0] for each in sent])
    return seconds


def _to_nobody(size: int, rounds: int) -> tuple[dict[str, float], float]:
    sender = Sender(WorkerGroup([Simulated() for _ in range(size)]), HostGroup([Simulated()]), 0)
    half = [[sender.step()[0] for _ in range(rounds)]]
    before = resident_bytes()
    half.append([sender.step()[0] for _ in range(rounds)])
    grown = (resident_bytes() - before) / 2**20
    return sender.milliseconds(half[1]), grown


def references_of(size: int) -> dict[str, float]:
    """References that each rank is sent, by call."""
    workers = [Simulated() for _ in range(size)]
    totals: dict[str, int] = {}

    def count(call: str) -> None:
        before = sum(totals.values())
        totals[call] = sum(worker.references for worker in workers) - before

    Sender(WorkerGroup(workers), HostGroup([Simulated()]), 0).step(count)
    return {call: total / size for call, total in totals.items()}


def report_growth(growth: Growth, smallest: bool) -> None:
    """Tables, verdicts, JSON."""
    calls = [call.id for call in STEP if call is not SCORE]
    print_table(
        ["driver's ms per rank", *calls],
        [
            [name, *(f"{each[call]:.3f}" for call in calls)]
            for name, each in growth.milliseconds.items()
        ],
    )
    print_table(
        ["references per rank", *calls],
        [
            [name, *(f"{each[call]:.1f}" for call in calls)]
            for name, each in growth.references.items()
        ],
    )
    print_table(
        ["of these bare Ray's", *calls],
        [[name, *(f"{each[call]:.3f}" for call in calls)] for name, each in growth.bare.items()],
    )
    own = max(
        growth.milliseconds[name][call] - each[call]
        for name, each in growth.bare.items()
        for call in calls
    )
    for name, value, unit, most in (
        ("driver's own time per rank and call", own, "ms", MILLISECONDS_PER_RANK),
        ("driver's memory grew by", growth.grown_mebibytes, "MiB", GROWTH_MIB),
    ):
        print(bound(name, value, unit, most, smallest=smallest))
    print_json(
        "dispatch-growth",
        smallest=smallest,
        milliseconds_per_rank=growth.milliseconds,
        bare_milliseconds_per_rank=growth.bare,
        references_per_rank=growth.references,
        grown_mebibytes=growth.grown_mebibytes,
    )
