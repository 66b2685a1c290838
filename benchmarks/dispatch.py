"""bench-dispatch: what the controller adds to bare Ray, and how it grows with the ranks.

Two measurements, in turns with their baselines:
column: a 1024 x 2048 float32 column (8 MiB) from two ranks to two others, by WorkerGroup.submit
        and CallInputs, against bare actors that pass the same numpy shards by reference.
empty:  a call that reads and writes nothing on 2 ranks, against one call of one bare actor.

A third measures the driver's cost of a step: generate, score, infer, compute and a training in four
mini-batches, sent to 2 to 64 actors, and to 1,024 simulated ones that count references. It prints
references and the driver's milliseconds, by call and rank, and the growth of its memory.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import ray
from command_line import make_parser, parse
from dispatch_growth import ACTORS, SIMULATED, measure_growth, report_growth
from outcome import milliseconds, note, paired_ratio, print_json, print_table, verdict

from rlhf_api.calls import CallKind
from rlhf_api.mesh import Mesh
from rlhf_api.plan import GraphName, Plan
from rlhf_api.reading.manifest import load_file
from rlhf_flow.step.calls import ModelCall
from rlhf_planner.plan import make_plan, pools_of
from rlhf_runtime.calls.inputs import CallInputs
from rlhf_runtime.calls.reports import CallReport, Statistics
from rlhf_runtime.calls.requests import CallRequest, InputBatch
from rlhf_runtime.controller.batch import Batch, ShardRef, as_batch
from rlhf_runtime.controller.dispatch import StepBackend
from rlhf_runtime.controller.local_ray import start_local_ray, stop_local_ray
from rlhf_runtime.controller.worker_groups import WorkerGroup
from rlhf_runtime.dataplane.columns import Column
from rlhf_runtime.dataplane.partition import BatchShape
from rlhf_runtime.dataplane.protocol import Coordinates
from rlhf_runtime.dataplane.shards import Shard, ShardIndex
from rlhf_runtime.telemetry.records import Span
from rlhf_runtime.workers.process import resident_bytes

EXAMPLE = Path(__file__).resolve().parent.parent / "examples" / "01-sort-grpo.yaml"
ROWS, WIDTH, RANKS = 1024, 2048, 2
TARGETS = {"column": 1.5, "empty": 2.0}
MESH = Mesh(pool="ranks", data=RANKS)
MAKE = ModelCall("maker.log_probs", "maker", "make", CallKind.INFER, (), ("block",))
TAKE = ModelCall("taker.train", "taker", "take", CallKind.TRAIN, ("block",), ())
NOTHING = ModelCall("taker.nothing", "taker", "nothing", CallKind.TRAIN, (), ())


class Worker:
    """A rank without torch: the part of Rank.run around a role's method."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        # Made once: only moving the column is measured.
        self._block = block_of(rank)

    def run(self, header: bytes, own: bytes, *shards: Shard) -> tuple[bytes, Shard] | bytes:
        """Run one call of the controller."""
        request = CallRequest.from_message(header, own)
        start = time.time()
        inputs = CallInputs(request, shards, Coordinates.in_mesh(self._rank, MESH))
        if request.call.method == "take":
            touch(inputs.load(inputs.rows())["block"].values)
        span = Span(
            f"rank {self._rank}", request.call.role or "", request.call.method, start, time.time()
        )
        report = CallReport(request.call.id, Statistics(), (span,), resident_bytes()).to_bytes()
        if request.call.method != "make":
            return report
        return report, Shard(inputs.index.find(inputs.rows()), {"block": Column(self._block)})


class BareActor:
    """An actor that reads no request and makes no report."""

    def __init__(self, rank: int) -> None:
        self._block = block_of(rank)

    def make(self) -> np.ndarray:
        """Return the shard."""
        return self._block

    def take(self, block: np.ndarray) -> None:
        """Read a shard."""
        touch(block)

    def nothing(self) -> None:
        """Return at once."""

    def rows(self, count: int) -> Shard:
        """Return the batch's first shard, as a data host does."""
        numbers = np.arange(count, dtype=np.int64)
        return Shard(ShardIndex(numbers, numbers, np.ones(count, dtype=np.int32)), {})


def block_of(rank: int) -> np.ndarray:
    """Half of the column, for one rank."""
    return np.full((ROWS // RANKS, WIDTH), float(rank), dtype=np.float32)


def touch(block: np.ndarray) -> None:
    """Check the data of a shard."""
    # Both ends are enough; reading everything would measure numpy.
    assert block.shape == (ROWS // RANKS, WIDTH) and block[0, 0] == block[-1, -1]


def controller_rounds(plan: Plan) -> tuple[Callable[[], None], Callable[[], None]]:
    """Make one round of `column` and one of `empty` through the controller."""
    makers, takers = (WorkerGroup(_actors(Worker)) for _ in range(2))
    (host,) = _actors(BareActor, 1)
    base, few = (as_batch((), [_rows(host, rows)], BatchShape(rows)) for rows in (ROWS, RANKS))
    groups: dict[str | None, WorkerGroup] = {"maker": makers, "taker": takers}

    def submit(backend: StepBackend, call: ModelCall, batch: Batch) -> Batch:
        request = CallRequest(call, 1, GraphName.STEP, "benchmark", (InputBatch(batch.shape),))
        submitted = groups[call.role].submit(request, [batch], MESH)
        backend.reports.extend(submitted.reports)
        return batch if submitted.result is None else batch | submitted.result

    def column() -> None:
        backend = StepBackend(plan, groups, host, GraphName.STEP, 1, "benchmark")
        # Both calls are under way before the first has ended, as in a step.
        submit(backend, TAKE, submit(backend, MAKE, base))
        assert len(backend.wait()) == 2 * RANKS

    def empty() -> None:
        backend = StepBackend(plan, groups, host, GraphName.STEP, 1, "benchmark")
        submit(backend, NOTHING, few)
        assert len(backend.wait()) == RANKS

    return column, empty


def _rows(host: Any, count: int) -> ShardRef:
    return ShardRef(host.rows.remote(count), range(count))


def bare_rounds() -> tuple[Callable[[], None], Callable[[], None]]:
    """Make the same rounds with bare Ray actors."""
    makers, takers = _actors(BareActor), _actors(BareActor)

    def column() -> None:
        shards = [maker.make.remote() for maker in makers]
        ray.get([taker.take.remote(shard) for taker, shard in zip(takers, shards, strict=True)])

    def empty() -> None:
        ray.get(takers[0].nothing.remote())

    return column, empty


def in_turns(
    ours: Callable[[], None], baseline: Callable[[], None], rounds: int
) -> tuple[list[float], list[float]]:
    """Seconds of rounds of both sides."""
    times: tuple[list[float], list[float]] = ([], [])
    # The first tenth does not count: connections are made and memory is allocated.
    for _ in range(rounds + rounds // 10 + 1):
        for seconds, run in zip(times, (ours, baseline), strict=True):
            begin = time.perf_counter()
            run()
            seconds.append(time.perf_counter() - begin)
    return times[0][-rounds:], times[1][-rounds:]


def _actors(kind: type, count: int = RANKS) -> Sequence[Any]:
    remote = ray.remote(kind).options(num_cpus=0, max_restarts=0, max_task_retries=0)
    return [remote.remote(rank) for rank in range(count)]


def main() -> None:
    """Read the command line, measure, report."""
    parser = make_parser(__doc__)
    parser.add_argument(
        "--rounds", type=int, default=300, help="rounds of both sides (default 300)"
    )
    parser.add_argument(
        "--actors", type=int, nargs="+", default=ACTORS, help=f"sizes of groups (default {ACTORS})"
    )
    parser.add_argument(
        "--simulated", type=int, default=SIMULATED, help=f"simulated ranks (default {SIMULATED})"
    )
    options = parse(parser, rounds=1, actors=[2], simulated=4)
    (job,) = load_file(EXAMPLE)
    _, plan = make_plan(job, pools_of(job, RANKS))
    # Ray's workers import this file's siblings and our packages the same way as this process does.
    os.environ["PYTHONPATH"] = os.pathsep.join(
        [str(Path(__file__).resolve().parent), os.environ.get("PYTHONPATH", "")]
    )
    note("starting Ray and nine actors")
    start_local_ray(5 * RANKS)
    try:
        names = ("column", "empty")
        pairs = list(zip(controller_rounds(plan), bare_rounds(), strict=True))
        measured = {}
        for name, (ours, baseline) in zip(names, pairs, strict=True):
            note(f"{name}: {options.rounds} rounds in turns")
            measured[name] = in_turns(ours, baseline, options.rounds)
        growth = measure_growth(max(1, options.rounds // 10), options.actors, options.simulated)
    finally:
        stop_local_ray()
    report(measured, options.smallest)
    report_growth(growth, options.smallest)


def report(measured: dict[str, tuple[list[float], list[float]]], smallest: bool) -> None:
    """Print table, verdicts and JSON."""
    ratios = {name: paired_ratio(*times) for name, times in measured.items()}
    print_table(
        ["median ms", "controller", "bare Ray", "ratio"],
        [
            [name, milliseconds(ours), milliseconds(theirs), ratios[name]]
            for name, (ours, theirs) in measured.items()
        ],
    )
    for name, ratio in ratios.items():
        print(verdict(name, ratio, TARGETS[name], smallest=smallest))
    medians = {name: [milliseconds(times) for times in pair] for name, pair in measured.items()}
    print_json("dispatch", smallest=smallest, ratio=ratios, target=TARGETS, milliseconds=medians)


if __name__ == "__main__":
    main()
