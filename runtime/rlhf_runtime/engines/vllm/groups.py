"""The groups of ranks that vLLM generates in: those of the plan, in the world that is there.

vLLM keeps one set of groups in a process, takes every rank of the world for its own, and cuts it
into groups of neighbours. Here a mesh's ranks are its world, and its groups those that are given.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from itertools import chain
from typing import Any

import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d

from rlhf_runtime.engines.vllm.arguments import Groups


@contextmanager
def engine_groups(groups: Groups, timeout: timedelta) -> Iterator[None]:
    """Let vLLM make these groups while an engine is built, or take over those that it has.

    Only the groups' ranks take part. Each of them calls `leave_groups` when the engine has ended.

    Args:
        groups: the same on all of their ranks; those of every engine of a process.
        timeout: longest wait for other ranks in a collective.
    """
    import vllm.distributed.parallel_state as state

    ranks, rank = sorted(chain(*groups)), dist.get_rank()
    (own,) = (group for group in groups if rank in group)
    if state._TP is not None:
        assert list(own) == state._TP.ranks, "engines of a process share its groups"
    replaced: list[tuple[Any, str, Any]] = [
        (state, "init_world_group", partial(_make_world, state.init_world_group, ranks)),
        (
            state,
            "init_model_parallel_group",
            partial(_make_groups, state.init_model_parallel_group, groups, ranks),
        ),
        (dist, "get_world_size", partial(_world_size, dist.get_world_size, len(ranks))),
    ]
    ours: dict[str, Any] = {"timeout": timeout}
    if len(ranks) < dist.get_world_size():
        ours["use_local_synchronization"] = True
        replaced.append((c10d, "_hash_ranks_to_str", _name_for_members))
    replaced.append((dist, "new_group", partial(_make_group, dist.new_group, ours)))
    with _replacing(replaced):
        yield
    state._TP.engines = getattr(state._TP, "engines", 0) + 1


def leave_groups() -> None:
    """Say that an engine has ended; vLLM's groups end with the last one, the world does not."""
    import vllm.distributed.parallel_state as state

    state._TP.engines -= 1
    if state._TP.engines == 0:
        state.destroy_model_parallel()
        state._WORLD.destroy()
        state._WORLD = state._NODE_COUNT = None


def _make_world(make: Any, ranks: list[int], _all: list[int], *given: Any, **options: Any) -> Any:
    """vLLM's group of all ranks: of those that generate."""
    return make(ranks, *given, **options)


def _make_groups(
    make: Any,
    groups: Groups,
    ranks: list[int],
    cut: list[list[int]],
    *given: Any,
    **options: Any,
) -> Any:
    """vLLM's groups of one kind: an engine's ranks, or each rank alone, as large as vLLM cut them.

    Without queues in shared memory, which would stay there when ranks are killed: they are for
    engines whose ranks do what one of them says.
    """
    alone = [[rank] for rank in ranks]
    options.pop("use_message_queue_broadcaster", None)
    return make(alone if len(cut[0]) == 1 else [list(group) for group in groups], *given, **options)


def _make_group(make: Any, ours: dict[str, Any], *given: Any, **options: Any) -> Any:
    """A group of torch, with our options in place of vLLM's."""
    return make(*given, **(options | ours))


def _world_size(ask: Any, size: int, group: dist.ProcessGroup | None = None) -> int:
    """How many ranks vLLM believes the world to have."""
    asked: int = size if group is None else ask(group)
    return asked


@contextmanager
def _replacing(replaced: Sequence[tuple[Any, str, Any]]) -> Iterator[None]:
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
    would wait for each other in different groups. All have made equally many of just these ranks;
    each counts its own, in the store, as a name is never used again.
    """
    name = f"generation-{'-'.join(map(str, ranks))}"
    made = c10d._get_default_store().add(f"{name}/made-by-{dist.get_rank()}", 1)
    return f"{name}.{made}"
