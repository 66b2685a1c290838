"""What the memory model has to know of every role with a model."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from rlhf_api.plan import Mesh
from rlhf_api.spec.resources import Device
from rlhf_flow.planning.memory import RoleModel
from rlhf_flow.planning.problem import ModelFacts, PlanningProblem, Workload

MICRO_BATCH_TOKENS: Mapping[Device, int] = {Device.CPU: 4096, Device.GPU: 16384}
"""Default of training.microBatchTokens: on CPUs more fall out of the cache, on GPUs fewer leave
the device idle."""

MAX_SHARED_TOKENS = 8192
"""Longest sequence with several responses: its mask has the square of it, in bytes. Nor is one
longer than a micro-batch."""


def longest_shared_tokens(workload: Workload, rows_per_prompt: int, micro_batch_tokens: int) -> int:
    """Longest sequence of a prompt and several of its responses; 0 where none is shared."""
    if rows_per_prompt == 1:
        return 0
    everything = workload.max_prompt_tokens + rows_per_prompt * workload.max_response_tokens
    return min(everything, MAX_SHARED_TOKENS, micro_batch_tokens)


def rank_tokens(
    workload: Workload, rows_per_prompt: int, num_ranks: int, rows_together: int
) -> int:
    """Tokens of a rank's share of a step's batch when every sequence is as long as it can be.

    Args:
        workload: what the job works on.
        rows_per_prompt: of the batch.
        num_ranks: that share it.
        rows_together: rows of a prompt that are on one rank.
    """
    rows = max(workload.prompts_per_step * rows_per_prompt, workload.other_rows)
    parts = num_ranks * rows_together
    return -(-rows // parts) * rows_together * workload.max_sequence_tokens


def role_models(
    problem: PlanningProblem,
    meshes: Mapping[str, Mesh],
    default_tokens: Mapping[str, int],
    recomputed: Collection[str] = (),
) -> tuple[RoleModel, ...]:
    """Every role that holds weights.

    Args:
        problem: what is planned.
        meshes: the ranks of each of these roles.
        default_tokens: of a micro-batch of each, where that is not decided already.
        recomputed: roles whose activations are computed again for the backward pass.
    """

    return tuple(
        role_model(
            problem,
            facts,
            meshes[facts.role],
            default_tokens[facts.role],
            facts.role in recomputed,
        )
        for facts in problem.models.values()
    )


def role_model(
    problem: PlanningProblem, facts: ModelFacts, mesh: Mesh, default_tokens: int, recompute: bool
) -> RoleModel:
    """A role on its ranks; arguments as above, for it alone."""
    sizes = _sizes(problem.workload, facts, mesh, default_tokens)
    return RoleModel(
        role=facts.role,
        mesh=mesh,
        device=problem.device,
        head=facts.head,
        is_trained=facts.is_trained,
        generates=facts.generates,
        shape=facts.shape,
        precision=facts.precision,
        micro_batch_tokens=sizes.micro_batch,
        peak_tokens=sizes.peak,
        batch_tokens=sizes.batch,
        longest_shared_tokens=sizes.longest_shared,
        is_saved=facts.is_saved,
        recompute=recompute,
        engine=facts.engine,
        sequence_parallel=facts.sequence_parallel,
        distributed_optimizer=facts.distributed_optimizer,
    )


class _Sizes(NamedTuple):
    """Padded tokens on a rank."""

    micro_batch: int
    """At once, unless a sequence is longer."""
    peak: int
    """Of the largest micro-batch that the job can have."""
    batch: int
    """Of all that a call can bring it."""
    longest_shared: int
    """Of a prompt and several responses; 0 where none is shared."""


def _sizes(workload: Workload, facts: ModelFacts, mesh: Mesh, default_tokens: int) -> _Sizes:
    tokens = facts.fixed.micro_batch_tokens or default_tokens
    batch = rank_tokens(workload, facts.rows_per_prompt, mesh.data, facts.rows_together)
    longest = workload.max_sequence_tokens  # one that is longer than a micro-batch runs alone
    shared = longest_shared_tokens(workload, facts.rows_per_prompt, tokens)
    return _Sizes(tokens, min(max(tokens, longest), batch), batch, shared)
