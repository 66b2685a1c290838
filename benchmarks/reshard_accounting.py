"""Cost of a transition per rank, as in HybridFlow's table 2, for a Llama of 70 B parameters."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from time import perf_counter

from outcome import print_table
from reshard_models import (
    LLAMA_70B,
    engine_layout,
    generation_layout,
    sharded,
    tensor_parallel,
    training_layout,
)

from rlhf_runtime.reshard.accounting import (
    RankCost,
    gathering_costs,
    reshard_costs,
    select_tensors,
    tensors_by_cut,
)
from rlhf_runtime.reshard.execute import BUCKET_ELEMENTS
from rlhf_runtime.reshard.layout import Layout
from rlhf_runtime.reshard.plan import plan_reshard
from rlhf_runtime.reshard.rounds import plan_rounds
from rlhf_runtime.reshard.topology import Topology

RANKS, TENSOR, GENERATION_TENSOR, RANKS_PER_NODE = 16, 8, 2, 8
PLANNED_RANKS = 128


def print_accounting() -> None:
    """Print a table of the schemes, and the time of planning for 128 ranks."""
    llama, topology = LLAMA_70B, Topology.regular(RANKS, RANKS_PER_NODE)
    by_rows, by_tensor = sharded(RANKS), tensor_parallel(RANKS, TENSOR)
    rows, trained = (training_layout(llama, mesh) for mesh in (by_rows, by_tensor))
    # DeepSpeed-Chat and vanilla: engines of neighbouring ranks, as the paper describes them.
    neighbours = engine_layout(llama, tensor_parallel(RANKS, GENERATION_TENSOR))
    # Ours: the planner chooses engines that move the least.
    chosen, from_rows = (
        generation_layout(llama, mesh, GENERATION_TENSOR, RANKS_PER_NODE)
        for mesh in (by_tensor, by_rows)
    )
    print(
        f"Llama 70B, 1-{TENSOR}-{RANKS // TENSOR} on {RANKS} ranks -> 1-{GENERATION_TENSOR}; worst "
        "rank, as a share of these tensors"
    )
    lines = [
        *lines_of("DeepSpeed-Chat", rows, neighbours, topology, gathers=True),
        *lines_of("vanilla", trained, neighbours, topology, gathers=True),
        *lines_of("HybridFlow", trained, chosen, topology, gathers=False),
        *lines_of("FSDP rows, planned", rows, from_rows, topology, gathers=False),
    ]
    header = ["scheme", "cut", "elements", "received", "between nodes", "peak", "redundant"]
    print_table(header, lines)
    planned = f"\n1-{TENSOR}-16 -> 1-{GENERATION_TENSOR}-64 on {PLANNED_RANKS} ranks"
    print(f"{planned}: {planning_seconds():.2f} s for layouts, groups, plan and a rank's moves")


def lines_of(
    scheme: str, source: Layout, target: Layout, topology: Topology, gathers: bool
) -> list[list[object]]:
    """Cells by kind of cut, and for all tensors."""
    rows = []
    for kind, names in [*tensors_by_cut(source, target).items(), ("all", tuple(source.shapes))]:
        one, other = select_tensors(source, names), select_tensors(target, names)
        if gathers:
            accounts: Sequence[RankCost] = gathering_costs(one, other, topology)
        else:
            accounts = reshard_costs(one, other, plan_reshard(one, other, topology))
        size = sum(prod(shape) for shape in one.shapes.values())
        # The slowest rank decides; the worst of one column may be another rank than of the next.
        worst = (
            max(a.received for a in accounts),
            max(a.received_between for a in accounts),
            max(a.peak for a in accounts),
            max(a.redundant for a in accounts),
        )
        rows.append([scheme, kind, f"{size / 1e9:.3f} G", *(f"{w / size:.4f}" for w in worst)])
    return rows


def planning_seconds() -> float:
    """Seconds in which one of 128 ranks plans: layouts, groups, plan and its own moves."""
    start = perf_counter()
    mesh = tensor_parallel(PLANNED_RANKS, TENSOR)
    source = training_layout(LLAMA_70B, mesh)
    topology = Topology.regular(PLANNED_RANKS, RANKS_PER_NODE)
    target = generation_layout(LLAMA_70B, mesh, GENERATION_TENSOR, RANKS_PER_NODE)
    plan_rounds(plan_reshard(source, target, topology), PLANNED_RANKS // 2, BUCKET_ELEMENTS)
    return perf_counter() - start
