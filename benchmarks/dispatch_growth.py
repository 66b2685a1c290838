"""Growth of the driver's work with the ranks: a step's calls, sent to real and simulated actors."""

from __future__ import annotations

import pickle
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ray
from outcome import limit_verdict, note, print_json, print_table

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
MAX_MILLISECONDS_PER_RANK = 0.2
"""Target: the driver's time for one call, minus bare Ray's for as many references."""
MAX_GROWTH_MIB = 8.0
"""Target: growth of the driver's memory over the later half of the simulated steps."""

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
    """Measurements by number of ranks."""

    milliseconds: Mapping[str, Mapping[str, float]]
    """Median CPU time of the driver per rank, by call."""
    bare: Mapping[str, Mapping[str, float]]
    """The same of bare Ray with as many references; real actors only."""
    references: Mapping[str, Mapping[str, float]]
    """Object references per rank, by call."""
    growth_mebibytes: float
    """Growth of the driver's memory in the later half of the simulated steps."""


class Listener:
    """An actor that answers every call at once."""

    def __init__(self, _rank: int) -> None:
        pass

    def run(self, *_message: Any) -> tuple[bytes, bytes]:
        """Answer with report and shard."""
        return b"", b""


class SimulatedWorker:
    """An actor handle without an actor; counts references."""

    def __init__(self) -> None:
        self.references = 0

    @property
    def run(self) -> SimulatedWorker:
        """Handle of the method."""
        return self

    def options(self, num_returns: int) -> SimulatedWorker:
        """Ignore options."""
        return self  # nobody reads the results, whatever their number

    def remote(self, _header: bytes, _own: bytes, *shards: Any) -> tuple[object, object]:
        """Count the references of one call."""
        self.references += len(shards)
        return object(), object()


SubmittedStep = tuple[dict[str, float], list[Any]]
"""The driver's seconds by call, and references to all results."""


@dataclass
class Sender:
    """Submits steps to a group of ranks and a host."""

    ranks: WorkerGroup
    host: HostGroup
    prompts: Any
    """Reference in place of the data host's shard."""

    def step(self, on_submitted: Callable[[str], None] = lambda _: None) -> SubmittedStep:
        """Submit a step.

        Args:
            on_submitted: called with the id of a call after its submission.
        """
        size = len(self.ranks.workers)
        shape = BatchShape(PROMPTS_PER_RANK * size)
        prompts = ShardRef(self.prompts, range(shape.num_rows))
        batch = as_batch(("prompt",), [prompts], shape)
        seconds: dict[str, float] = {}
        results: list[Any] = []
        for call in STEP:
            is_score = call.kind is CallKind.SCORE
            parts = MINI_BATCHES if call is TRAIN else 1
            batches = (InputBatch(batch.shape),)
            request = CallRequest(call, 1, GraphName.STEP, "benchmark", batches, parts)
            mesh = None if is_score else Mesh(pool="ranks", data=size)
            # CPU time of this thread: Ray's threads and other processes do not count.
            begin = time.thread_time()
            submitted = (self.host if is_score else self.ranks).submit(request, [batch], mesh)
            seconds[call.id] = time.thread_time() - begin
            on_submitted(call.id)
            results += submitted.reports
            if submitted.result is not None:
                # Generation has new rows: the samples of every prompt.
                batch = submitted.result if call is GENERATE else batch | submitted.result
        return seconds, results

    def milliseconds(self, rounds: Sequence[Mapping[str, float]]) -> dict[str, float]:
        """Median over rounds per rank, by call."""
        # SCORE goes to the host, not to ranks.
        return {
            call.id: 1000 * statistics.median(r[call.id] for r in rounds) / len(self.ranks.workers)
            for call in STEP
            if call is not SCORE
        }


def measure_growth(rounds: int, actors: Sequence[int], simulated: int) -> Growth:
    """Submit steps to actors of a running Ray instance, and to simulated ranks.

    Args:
        rounds: steps per group.
        actors: sizes of groups.
        simulated: number of simulated ranks.
    """
    milliseconds, bare, references = {}, {}, {}
    for size in actors:
        name = f"{size} actors"
        note(f"{rounds} steps of {name}")
        references[name] = references_of(size)
        milliseconds[name], bare[name] = _actor_milliseconds(size, rounds, references[name])
    name = f"{simulated} simulated"
    note(f"{rounds} steps of {name} ranks")
    milliseconds[name], growth = _simulated_milliseconds(simulated, rounds)
    references[name] = references_of(simulated)
    return Growth(milliseconds, bare, references, growth)


def _actor_milliseconds(
    size: int, rounds: int, references: Mapping[str, float]
) -> tuple[dict[str, float], dict[str, float]]:
    """Milliseconds of the controller and of bare Ray, in turns."""
    remote = ray.remote(Listener).options(num_cpus=0, max_restarts=0, max_task_retries=0)
    actors = [remote.remote(rank) for rank in range(size + 1)]
    sender = Sender(WorkerGroup(actors[:size]), HostGroup(actors[size:]), ray.put(b""))
    ours, bare = [], []
    for _ in range(rounds + 2):  # the first two connect
        seconds, results = sender.step()
        # The next step begins when no actor works: they share this machine's cores.
        ray.get(results)
        ours.append(seconds)
        bare.append(_bare_step(actors[:size], references))
    for actor in actors:
        ray.kill(actor)
    return sender.milliseconds(ours[2:]), sender.milliseconds(bare[2:])


def _bare_step(actors: Sequence[Any], references: Mapping[str, float]) -> dict[str, float]:
    """Seconds of bare Ray for as many calls with as many references."""
    objects = [ray.put(b"") for _ in range(round(max(references.values())))]
    seconds = {}
    for call in STEP:
        header, arguments = pickle.dumps(call), objects[: round(references[call.id])]
        methods = [actor.run.options(num_returns=1 if call is TRAIN else 2) for actor in actors]
        begin = time.thread_time()
        results = [method.remote(header, b"", *arguments) for method in methods]
        seconds[call.id] = time.thread_time() - begin
        ray.get([result if call is TRAIN else result[0] for result in results])
    return seconds


def _simulated_milliseconds(size: int, rounds: int) -> tuple[dict[str, float], float]:
    """Milliseconds, and growth of the driver's memory in MiB."""
    workers = [SimulatedWorker() for _ in range(size)]
    sender = Sender(WorkerGroup(workers), HostGroup([SimulatedWorker()]), 0)
    # The first half fills caches; growth in the second is a leak.
    for _ in range(rounds):
        sender.step()
    before = resident_bytes()
    seconds = [sender.step()[0] for _ in range(rounds)]
    growth = (resident_bytes() - before) / 2**20
    return sender.milliseconds(seconds), growth


def references_of(size: int) -> dict[str, float]:
    """Object references per rank, by call."""
    workers = [SimulatedWorker() for _ in range(size)]
    totals: dict[str, int] = {}

    def count(call: str) -> None:
        # Workers only add up; a call's share is the difference.
        before = sum(totals.values())
        totals[call] = sum(worker.references for worker in workers) - before

    Sender(WorkerGroup(workers), HostGroup([SimulatedWorker()]), 0).step(count)
    return {call: total / size for call, total in totals.items()}


def report_growth(growth: Growth, smallest: bool) -> None:
    """Print tables, verdicts and JSON."""
    calls = [call.id for call in STEP if call is not SCORE]
    print_table(
        ["driver's ms per rank", *calls],
        [
            [name, *(f"{by_call[call]:.3f}" for call in calls)]
            for name, by_call in growth.milliseconds.items()
        ],
    )
    print_table(
        ["references per rank", *calls],
        [
            [name, *(f"{by_call[call]:.1f}" for call in calls)]
            for name, by_call in growth.references.items()
        ],
    )
    print_table(
        ["bare Ray's ms per rank", *calls],
        [
            [name, *(f"{by_call[call]:.3f}" for call in calls)]
            for name, by_call in growth.bare.items()
        ],
    )
    own = max(
        growth.milliseconds[name][call] - by_call[call]
        for name, by_call in growth.bare.items()
        for call in calls
    )
    for name, value, unit, limit in (
        ("driver's own time per rank and call", own, "ms", MAX_MILLISECONDS_PER_RANK),
        ("driver's memory grew by", growth.growth_mebibytes, "MiB", MAX_GROWTH_MIB),
    ):
        print(limit_verdict(name, value, unit, limit, smallest=smallest))
    print_json(
        "dispatch-growth",
        smallest=smallest,
        milliseconds_per_rank=growth.milliseconds,
        bare_milliseconds_per_rank=growth.bare,
        references_per_rank=growth.references,
        growth_mebibytes=growth.growth_mebibytes,
    )
