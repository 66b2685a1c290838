"""Everything that is changed about vLLM once it is imported, each with its reason.

Called by the engine before it builds vLLM's; nothing happens at import.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d

_Answer = TypeVar("_Answer")


def keep_ordinary_weights() -> None:
    """Stop vLLM's CPU backend from packing weights: only ordinary storage can be overwritten."""
    import vllm.model_executor.layers.utils as layer_utils

    def plain_linear(layer: torch.nn.Module, remove_weight: bool = False) -> None:
        layer.cpu_linear = torch.nn.functional.linear  # type: ignore[assignment]

    layer_utils.dispatch_cpu_unquantized_gemm = plain_linear


def inspect_models_here() -> None:
    """Let vLLM look at a model's class in this process, which needs the class anyway.

    vLLM starts an interpreter for it, so that its own process has not touched CUDA before it forks:
    here nothing forks. It keeps the answer in the home folder, which in a pod is always empty.
    """
    import vllm.model_executor.models.registry as registry

    def run_here(look: Callable[[], _Answer]) -> _Answer:
        return look()

    registry._run_in_subprocess = run_here


def join_existing_world(rank: int, local_rank: int, world: str) -> None:
    """Let vLLM use the process group that exists, under a name of its own.

    On CPUs vLLM names shared memory after the text of the init method: `env://` alone would clash
    with any other world on the node, and with what a killed one left behind.
    """
    from vllm.v1.executor.uniproc_executor import ExecutorWithExternalLauncher

    def distributed_args(_executor: object) -> tuple[str, int, int]:
        return f"env://:{world}", rank, local_rank

    ExecutorWithExternalLauncher._distributed_args = distributed_args


@contextmanager
def groups_within(ranks: Sequence[int], timeout: timedelta) -> Iterator[None]:
    """Let vLLM make its groups of some of the world's ranks only, and only these ranks take part.

    vLLM takes every rank of the world for its own: it cuts all of them into groups, which every
    rank would have to make with it, also one that does not generate.

    Args:
        ranks: those that generate, the same on all of them; groups that vLLM cuts of the whole
            world lie within them or beside them.
        timeout: longest wait for other ranks in a collective.
    """
    import vllm.distributed.parallel_state as state

    world_group, model_group = state.init_world_group, state.init_model_parallel_group

    def own_world(_ranks: list[int], *arguments: Any, **options: Any) -> Any:
        return world_group(list(ranks), *arguments, **options)

    def own_groups(groups: list[list[int]], *arguments: Any, **options: Any) -> Any:
        return model_group([g for g in groups if set(g) <= set(ranks)], *arguments, **options)

    replaced: list[tuple[Any, str, Any]] = [
        (dist, "new_group", partial(dist.new_group, timeout=timeout))
    ]
    if len(ranks) < dist.get_world_size():
        by_members = partial(dist.new_group, timeout=timeout, use_local_synchronization=True)
        replaced = [
            (state, "init_world_group", own_world),
            (state, "init_model_parallel_group", own_groups),
            (dist, "new_group", by_members),
            (c10d, "_hash_ranks_to_str", _name_for_members),
        ]
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in replaced]
    for owner, name, replacement in replaced:
        setattr(owner, name, replacement)
    try:
        yield
    finally:
        for owner, name, original in before:
            setattr(owner, name, original)


def _name_for_members(ranks: list[int]) -> str:
    """A name of a group that all of its members know.

    torch's own has the number of all groups that a rank is in, in which members may differ: they
    would wait for each other in different groups. All have made equally many of just these ranks.
    """
    prefix = f"generation-{'-'.join(map(str, ranks))}."
    made = sum(name.startswith(prefix) for name in c10d._world.pg_names.values())
    return f"{prefix}{made}"
