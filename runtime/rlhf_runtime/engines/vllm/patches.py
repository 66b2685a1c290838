"""Patches of vLLM, each with its reason. The engine applies them; nothing happens at import.

The second half makes vLLM's process groups. vLLM has one set of groups in a process, assumes that
all ranks of the world generate, and cuts the world into groups of consecutive ranks. Here a mesh's
ranks are vLLM's world, and its groups are those of the plan.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d

from rlhf_runtime.engines.generation import Groups

_Result = TypeVar("_Result")
SHARED_MEMORY = Path("/dev/shm")


def disable_weight_packing() -> None:
    """Stop vLLM's CPU backend from packing weights when it loads them."""
    # It would free the originals, and a transfer can overwrite only these. `PackedWeights` packs
    # copies of them.
    import vllm.model_executor.layers.utils as layer_utils

    def plain_linear(layer: torch.nn.Module, remove_weight: bool = False) -> None:
        layer.cpu_linear = torch.nn.functional.linear  # type: ignore[assignment]

    layer_utils.dispatch_cpu_unquantized_gemm = plain_linear


def inspect_models_in_process() -> None:
    """Make vLLM inspect a model's class in this process, which needs the class anyway."""
    # vLLM starts an interpreter for it, so that a process that will fork does not initialize CUDA:
    # here nothing forks. It caches the result in the home folder, which is empty in a new pod.
    import vllm.model_executor.models.registry as registry

    def run_in_process(inspect: Callable[[], _Result]) -> _Result:
        return inspect()

    registry._run_in_subprocess = run_in_process


def use_existing_world(rank: int, local_rank: int, world: str) -> None:
    """Make vLLM use the existing process group, under a unique name."""
    # On CPUs vLLM names shared memory after the text of the init method: `env://` alone would clash
    # with any other world on the node, and with the remains of a killed one.
    from vllm.v1.executor.uniproc_executor import ExecutorWithExternalLauncher

    def distributed_args(_executor: object) -> tuple[str, int, int]:
        return f"env://:{world}", rank, local_rank

    ExecutorWithExternalLauncher._distributed_args = distributed_args


def unlink_shared_memory(world: str) -> None:
    """Remove the names of this engine's shared memory, which all of its ranks have mapped.

    Then the kernel frees it with the last rank, also if all of them are killed.

    Args:
        world: a name of the generating ranks and this incarnation.
    """
    from vllm.distributed import get_tp_group

    # Other engines of the world may not have mapped theirs.
    own = f"-[{'-'.join(map(str, get_tp_group().ranks))}]-"
    for segment in SHARED_MEMORY.glob(f"*{world}*"):
        if own in segment.name:
            # Each of the ranks removes all of them.
            segment.unlink(missing_ok=True)


def keep_process_group() -> None:
    """Stop an engine from destroying torch's world when it ends: the process owns that."""
    import vllm.v1.engine.core as core

    core.cleanup_dist_env_and_memory = lambda: None


def exclude_tokens(model: Any, excluded: Sequence[range]) -> None:
    """Make a vLLM model compute logits of -inf for tokens, so that their probability is 0."""
    # Not by `allowed_token_ids`: every request would list the whole vocabulary, of which vLLM's
    # sampler for GPUs accepts 1024 tokens. Not by fewer logits either: vLLM's
    # settings of sampling are for as many as the model's config says.
    compute_logits = model.compute_logits

    def compute_logits_without_excluded(*args: Any, **options: Any) -> torch.Tensor | None:
        logits: torch.Tensor | None = compute_logits(*args, **options)
        if logits is not None:  # only one rank may have them
            for tokens in excluded:
                logits[..., tokens.start : tokens.stop] = -torch.inf
        return logits

    model.compute_logits = compute_logits_without_excluded


def record_kept_tokens(runner: Any, scheduler: Any) -> None:
    """Make vLLM's first model runner record the tokens that truncated sampling kept, as its second
    one does with `return_sampling_mask`."""
    # A request for the log-probabilities of the whole vocabulary would also tell, but sort it.
    sampler = runner.sampler
    sample, sample_tokens = sampler.sample, runner.sample_tokens
    masks: list[Any] = []

    def recording_sample(logits: torch.Tensor, metadata: Any, *args: Any, **options: Any) -> Any:
        sampled, log_probs = sample(logits, metadata, *args, **options)
        # Also if nothing is left out: topK may exceed the vocabulary.
        if not metadata.all_greedy:
            masks.append(_kept_tokens(log_probs))
        return sampled, log_probs

    def sample_tokens_and_masks(*args: Any, **options: Any) -> Any:
        masks.clear()
        output = sample_tokens(*args, **options)
        if masks:
            output.sampling_masks = masks[-1]
        return output

    sampler.sample, runner.sample_tokens = recording_sample, sample_tokens_and_masks
    scheduler.return_sampling_mask = True


def _kept_tokens(log_probs: torch.Tensor) -> Any:
    """The tokens of a probability above 0, as vLLM's sampling masks."""
    from vllm.v1.outputs import SamplingMaskLists

    # NaN counts as kept: the update must show it.
    rows, tokens = (log_probs.numpy() != -np.inf).nonzero()
    offsets = np.searchsorted(rows, np.arange(len(log_probs) + 1))
    return SamplingMaskLists(tokens, offsets)


@contextmanager
def engine_groups(groups: Groups, timeout: timedelta) -> Iterator[None]:
    """Make vLLM create these groups while an engine is built, or reuse those that it has.

    Collective over the groups' ranks. Each of them calls `leave_groups` when the engine has ended.

    Args:
        groups: the same on all of their ranks, and for all engines of a process.
        timeout: time-out of collectives.
    """
    import vllm.distributed.parallel_state as state

    ranks, rank = sorted(chain(*groups)), dist.get_rank()
    (own,) = (group for group in groups if rank in group)
    if state._TP is not None:
        assert list(own) == state._TP.ranks, "engines of a process share its groups"
    replacements: list[tuple[Any, str, Any]] = [
        (state, "init_world_group", partial(_make_world, state.init_world_group, ranks)),
        (
            state,
            "init_model_parallel_group",
            partial(_make_groups, state.init_model_parallel_group, groups, ranks),
        ),
        (dist, "get_world_size", partial(_world_size, dist.get_world_size, len(ranks))),
    ]
    options: dict[str, Any] = {"timeout": timeout}
    if len(ranks) < dist.get_world_size():
        # Ranks outside of the groups do not call `new_group`.
        options["use_local_synchronization"] = True
        replacements.append((c10d, "_hash_ranks_to_str", _member_group_name))
    replacements.append((dist, "new_group", partial(_make_group, dist.new_group, options)))
    with _replaced(replacements):
        yield
    state._TP.engines = getattr(state._TP, "engines", 0) + 1


def leave_groups() -> None:
    """Count the end of an engine; vLLM's groups end with the last one, the world does not."""
    import vllm.distributed.parallel_state as state

    state._TP.engines -= 1
    if state._TP.engines == 0:
        state.destroy_model_parallel()
        state._WORLD.destroy()
        state._WORLD = state._NODE_COUNT = None


def _make_world(make: Any, ranks: list[int], _all: list[int], *args: Any, **options: Any) -> Any:
    """vLLM's group of all ranks: only the generating ones."""
    return make(ranks, *args, **options)


def _make_groups(
    make: Any,
    groups: Groups,
    ranks: list[int],
    cut: list[list[int]],
    *args: Any,
    **options: Any,
) -> Any:
    """vLLM's groups of one kind: the ranks of engines, or single ranks if vLLM asks for those."""
    alone = [[rank] for rank in ranks]
    # Message queues in shared memory would remain there after ranks are killed. Only engines in
    # which one rank controls the others need them.
    options.pop("use_message_queue_broadcaster", None)
    return make(alone if len(cut[0]) == 1 else [list(group) for group in groups], *args, **options)


def _make_group(make: Any, own_options: dict[str, Any], *args: Any, **options: Any) -> Any:
    """A group of torch, with some of vLLM's options replaced."""
    return make(*args, **(options | own_options))


def _world_size(
    get_world_size: Any, world_size: int, group: dist.ProcessGroup | None = None
) -> int:
    """The number of generating ranks for the world, the real size for groups."""
    size: int = world_size if group is None else get_world_size(group)
    return size


@contextmanager
def _replaced(replacements: Sequence[tuple[Any, str, Any]]) -> Iterator[None]:
    originals = [(owner, name, getattr(owner, name)) for owner, name, _ in replacements]
    for owner, name, replacement in replacements:
        setattr(owner, name, replacement)
    try:
        yield
    finally:
        for owner, name, original in originals:
            setattr(owner, name, original)


def _member_group_name(ranks: list[int]) -> str:
    """A unique name of a group on which all members agree without the other ranks."""
    # torch's own name contains the number of all groups of a rank, in which members may differ:
    # they would wait for each other in different groups. All members have created equally many
    # groups of exactly these ranks. Each counts its own in the store, because no name may be used
    # twice.
    name = f"generation-{'-'.join(map(str, ranks))}"
    number = c10d._get_default_store().add(f"{name}/made-by-{dist.get_rank()}", 1)
    return f"{name}.{number}"
