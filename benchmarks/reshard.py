"""bench-reshard: weights from training to generation, on four ranks, and their cost by plan.

Three methods to fill a rank's generation parameters, in turns:
reshard:   the plan's moves, straight into the parameters
gathering: every tensor in full to every rank, which copies its part
raw:       one all-gather, and one all-to-all, in which a rank receives as many bytes as by the plan

Models are a tiny Llama and one of 100 M parameters; sources are tensor-parallel shards (1-4-1) and
FSDP's rows (4), targets are tensor-parallel over 2 ranks, and the whole model on every rank, where
an all-gather moves no more than the plan. Received weights are checked, and moved bytes are
compared with the plan. Ranks use NCCL with a GPU per rank, else gloo.
`--accounting` prints the cost of a transition as HybridFlow's table 2 does; it moves nothing.
"""

from __future__ import annotations

import multiprocessing
import queue
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from command_line import make_parser, parse
from outcome import milliseconds, note, paired_ratio, print_json, print_table, verdict
from reshard_accounting import print_accounting
from reshard_models import (
    CASES,
    ELEMENT_BYTES,
    SHAPES,
    Llama,
    generation_layout,
    training_layout,
)
from torch import Tensor

from rlhf_runtime.engines.world import BACKENDS
from rlhf_runtime.reshard.execute import PreparedTransfer
from rlhf_runtime.reshard.layout import Layout
from rlhf_runtime.reshard.plan import plan_reshard
from rlhf_runtime.reshard.slices import TensorSlice
from rlhf_runtime.reshard.views import View, Views

RANKS = 4
AGAINST_GATHERING, AGAINST_RAW = 1.2, 1.5
"""Targets: limits relative to gathering (in proportion to bytes) and to the raw all-gather."""
ANSWER_SECONDS = 600.0
"""Limit of the wait for the next measurement of any rank."""
# In the third case gathering moves as little as the plan. Moves of the tiny model are too short.
HAVE_TARGETS = ("1-4-1 -> 1-2", "FSDP 4 -> tp 2")
"""Cases with targets, for the larger model."""


@dataclass(frozen=True)
class Measured:
    """Seconds by round and bytes of one rank."""

    reshard: list[float]
    gathering: list[float]
    all_gather: list[float]
    all_to_all: list[float]
    sent: int
    received: int
    staged: int


def run_rank(rank: int, model: str, rounds: int, folder: Path, out: Any) -> None:
    """Measure all cases of a model, as one rank. Collective."""
    # Ranks share the cores of this machine.
    torch.set_num_threads(1)
    backend = use_device(rank)
    store = f"file://{folder}/store"
    dist.init_process_group(backend, init_method=store, rank=rank, world_size=RANKS)
    for case in CASES:
        if rank == 0:
            note(f"{model}, {case}")
        out.put((rank, case, measure_case(rank, model, case, rounds)))
        dist.barrier()
    dist.destroy_process_group()


def measure_case(rank: int, model: str, case: str, rounds: int) -> Measured:
    """Measure one case, as one rank. Collective."""
    source, target = layouts_of(SHAPES[model], case)
    plan = plan_reshard(source, target)
    sources, targets = views_of(source, rank), empty_views(target, rank)
    transfer = PreparedTransfer(plan, rank, sources, targets)
    received = max(plan.traffic.received)
    methods: dict[str, Callable[[], object]] = {
        "reshard": transfer.run,
        "gathering": partial(gather_all, source, sources, targets),
        "all_gather": raw_all_gather(received),
        "all_to_all": raw_all_to_all(received),
    }
    seconds: dict[str, list[float]] = {name: [] for name in methods}
    for number in range(rounds + 1):
        for name, run in methods.items():
            wait_for_all()
            start = time.perf_counter()
            run()
            wait_for_all()  # a transition ends when its last rank has ended
            if number:  # the first round allocates memory
                seconds[name].append(time.perf_counter() - start)
    # Zeroed, so that the check sees this transfer and no earlier one.
    for views in targets.values():
        for tensor, _ in views:
            tensor.zero_()
    stats = transfer.run()
    check_arrived(target, rank, targets)
    staged = stats.peak_staging_bytes
    sent, received = stats.bytes_sent, stats.bytes_received
    return Measured(**seconds, sent=sent, received=received, staged=staged)


def use_device(rank: int) -> str:
    """Make a GPU of the rank's own, or the CPU, torch's default; returns the backend."""
    if torch.cuda.device_count() < RANKS:
        return BACKENDS["cpu"]
    torch.cuda.set_device(rank)
    torch.set_default_device("cuda")
    return BACKENDS["cuda"]


def wait_for_all() -> None:
    """Wait until every rank has finished its work. Collective."""
    # On a GPU a call returns before its work is done.
    if torch.get_default_device().type == "cuda":
        torch.cuda.synchronize()
    dist.barrier()


def layouts_of(llama: Llama, case: str) -> tuple[Layout, Layout]:
    """Layouts of training and generation, in the groups with the least traffic."""
    mesh, tensor_size = CASES[case]
    return training_layout(llama, mesh), generation_layout(llama, mesh, tensor_size)


def part(shape: tuple[int, ...], box: TensorSlice) -> Tensor:
    """Slice of a tensor with numbered elements."""
    # Numbers are all different, so a slice in the wrong position is noticed.
    numbers = torch.arange(prod(shape), dtype=torch.float32).view(shape)
    return numbers[box.slices_in(TensorSlice.full(shape))].clone()


def views_of(layout: Layout, rank: int) -> Views:
    """Pieces of a rank, in tensors of their own, with numbered elements."""
    return {n: [View(part(layout.shapes[n], box), box)] for n, box in layout.pieces[rank]}


def empty_views(layout: Layout, rank: int) -> Views:
    """Pieces of a rank, in tensors of their own, filled with zeros."""
    return {name: [View(torch.zeros(box.shape), box)] for name, box in layout.pieces[rank]}


def check_arrived(layout: Layout, rank: int, views: Views) -> None:
    """Check a rank's pieces.

    Raises:
        RuntimeError: a piece has other elements than the numbered ones.
    """
    for name, box in layout.pieces[rank]:
        if not torch.equal(views[name][0].tensor, part(layout.shapes[name], box)):
            raise RuntimeError(f"rank {rank} has something else for {name}")


def gather_all(source: Layout, sources: Views, targets: Views) -> None:
    """Gather tensors one after the other and copy the target's part. Collective."""
    for name, shape in source.shapes.items():
        ((own, own_box),) = sources[name]
        full = own
        if own_box.shape != shape:  # replicated otherwise
            parts = [torch.empty_like(own) for _ in range(RANKS)]
            dist.all_gather(parts, own)
            # The dimension in which ranks have slices.
            dim = next(d for d, length in enumerate(shape) if own_box.shape[d] != length)
            full = torch.cat(parts, dim)
        for tensor, box in targets[name]:
            tensor.copy_(full[box.slices_in(TensorSlice.full(shape))])


def raw_all_gather(received: int) -> Callable[[], object]:
    """Make an all-gather of flat tensors in which a rank receives so many elements."""
    # A rank's own part is not received.
    own = torch.ones(received // (RANKS - 1))
    gathered = torch.empty(RANKS * own.numel())
    return partial(dist.all_gather_single, gathered, own)


def raw_all_to_all(received: int) -> Callable[[], object]:
    """Make an all-to-all of flat tensors in which a rank receives so many elements."""
    own = torch.ones(RANKS * (received // (RANKS - 1)))
    return partial(dist.all_to_all_single, torch.empty_like(own), own)


def measure(model: str, rounds: int) -> dict[str, list[Measured]]:
    """Measure a model; returns measurements of ranks 0, 1, ... by case.

    Raises:
        RuntimeError: a rank failed; its traceback is on stderr.
    """
    context = multiprocessing.get_context("forkserver")  # imports this file once for all ranks
    out: Any = context.Queue()
    with tempfile.TemporaryDirectory(prefix="bench-reshard-") as folder:
        ranks = [
            context.Process(target=run_rank, args=(rank, model, rounds, Path(folder), out))
            for rank in range(RANKS)
        ]
        try:
            for process in ranks:
                process.start()
            measured = {(case, rank): result for rank, case, result in answers(ranks, out)}
            for process in ranks:
                process.join()
        finally:
            # After a failure of one, the others wait in a collective.
            for process in ranks:
                if process.pid is not None:
                    process.kill()
                    process.join()
    return {case: [measured[case, rank] for rank in range(RANKS)] for case in CASES}


def answers(ranks: Sequence[Any], out: Any) -> Iterator[tuple[int, str, Measured]]:
    """Yield measurements in the order of their arrival.

    Raises:
        RuntimeError: a rank failed, or no rank answered in time.
    """
    missing, deadline = RANKS * len(CASES), time.monotonic() + ANSWER_SECONDS
    while missing:
        try:
            yield out.get(timeout=1.0)
        except queue.Empty:
            if any(process.exitcode for process in ranks):
                raise RuntimeError("a rank failed") from None
            if time.monotonic() > deadline:
                raise RuntimeError(f"no rank answered within {ANSWER_SECONDS:g} s") from None
        else:
            # Cases take minutes in all, so the limit is one of silence.
            missing, deadline = missing - 1, time.monotonic() + ANSWER_SECONDS


def report(model: str, case: str, ranks: list[Measured], smallest: bool) -> dict[str, object]:
    """Compare bytes with the plan and times with the baselines; print a line per target."""
    source, target = layouts_of(SHAPES[model], case)
    traffic = plan_reshard(source, target).traffic
    # A plan that is not executed as planned makes every other figure worthless.
    for rank, measured in enumerate(ranks):
        planned = ELEMENT_BYTES * traffic.sent[rank], ELEMENT_BYTES * traffic.received[rank]
        if planned != (measured.sent, measured.received):
            raise RuntimeError(f"rank {rank} moved {measured.sent, measured.received}: {planned}")
    size = sum(prod(shape) for shape in source.shapes.values())
    gathered = sum(size - source.num_elements(rank) for rank in range(RANKS))
    share = sum(traffic.received) / gathered
    first = ranks[0]
    ratio = paired_ratio(first.reshard, first.gathering)
    raw = paired_ratio(first.reshard, first.all_gather)
    if case in HAVE_TARGETS and (smallest or model == "100M"):
        name = f"{case}, {share:.2f} of the bytes, time against gathering / that share"
        print(verdict(name, ratio / share, AGAINST_GATHERING, smallest=smallest))
        name = f"{case}, time against a raw all-gather"
        print(verdict(name, raw, AGAINST_RAW, smallest=smallest))
    return {
        "model": model,
        "case": case,
        "share": share,
        "MB": ELEMENT_BYTES * max(traffic.received) / 1e6,
        "staged MB": max(measured.staged for measured in ranks) / 1e6,
        "reshard ms": milliseconds(first.reshard),
        "gathering ms": milliseconds(first.gathering),
        "all-gather ms": milliseconds(first.all_gather),
        "all-to-all ms": milliseconds(first.all_to_all),
        "/ gathering": ratio,
        "/ all-gather": raw,
        "/ all-to-all": paired_ratio(first.reshard, first.all_to_all),
    }


def main() -> None:
    """Read the command line, measure and report."""
    parser = make_parser(__doc__)
    parser.add_argument("--models", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--rounds", type=int, default=7, help="rounds per method (default 7)")
    parser.add_argument("--accounting", action="store_true", help="print table 2 and end")
    options = parse(parser, models=["tiny"], rounds=1)
    if options.accounting:
        print_accounting()
        return
    rows = [
        report(model, case, ranks, options.smallest)
        for model in options.models
        for case, ranks in measure(model, options.rounds).items()
    ]
    print_table(list(rows[0]), [list(row.values()) for row in rows])
    print_json("reshard", smallest=options.smallest, rows=rows)


if __name__ == "__main__":
    main()
