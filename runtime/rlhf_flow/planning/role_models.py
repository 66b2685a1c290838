"""What the memory model has to know of every role with a model."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from rlhf_api import RLHFJob
from rlhf_api.plan import GraphName, Head, Mesh
from rlhf_api.spec.resources import Device
from rlhf_flow.graph import Graph
from rlhf_flow.job_graphs import JobRole, job_roles, policy_of
from rlhf_flow.planning.memory import RoleModel
from rlhf_flow.planning.shapes import DecoderShape
from rlhf_flow.precision import resolve_precision

MICRO_BATCH_TOKENS: Mapping[Device, int] = {Device.CPU: 4096, Device.GPU: 16384}
"""Default of training.microBatchTokens: on CPUs more fall out of the cache, on GPUs fewer leave
the device idle."""

MAX_SHARED_TOKENS = 8192
"""Longest sequence with several responses: its mask has the square of it, in bytes. Nor is one
longer than a micro-batch."""


def longest_sequence_tokens(job: RLHFJob) -> int:
    """Longest prompt plus longest response."""
    return job.spec.rollout.max_prompt_tokens + job.spec.rollout.max_response_tokens


def longest_shared_tokens(job: RLHFJob, rows_per_prompt: int, micro_batch_tokens: int) -> int:
    """Longest sequence of a prompt and several of its responses; 0 where none is shared."""
    if rows_per_prompt == 1:
        return 0
    rollout = job.spec.rollout
    everything = rollout.max_prompt_tokens + rows_per_prompt * rollout.max_response_tokens
    return min(everything, MAX_SHARED_TOKENS, micro_batch_tokens)


def is_saved(job: RLHFJob, name: str, role: JobRole, policy: str) -> bool:
    """Whether the weights of a role with a model cannot be had from their source any more: it is
    trained, takes over another role's, or took the policy's after a warm start."""
    has_warm_start = job.spec.schedule.warm_start is not None
    takes_policys = job.spec.origin_of(name) == job.spec.origin_of(policy)
    return role.is_trained or role.takes_weights or (has_warm_start and takes_policys)


def rank_tokens(job: RLHFJob, rows_per_prompt: int, num_ranks: int, rows_together: int) -> int:
    """Tokens of a rank's share of a step's batch when every sequence is as long as it can be.

    Args:
        rows_per_prompt: of the batch.
        num_ranks: that share it.
        rows_together: rows of a prompt that are on one rank.
    """
    rows = job.spec.schedule.prompts_per_step * rows_per_prompt
    warm_start = job.spec.schedule.warm_start
    if warm_start is not None:
        rows = max(rows, warm_start.prompts_per_step)
    rows = max(rows, job.spec.pretraining_rows_per_step or 0)
    parts = num_ranks * rows_together
    return -(-rows // parts) * rows_together * longest_sequence_tokens(job)


def rows_together(graph: Graph, role: str) -> int:
    """Rows of a prompt that a role always has on one rank: all where its loss compares them, else
    one."""
    compared = [
        graph.rows[call.id].most for call in graph.trainings(role) if call.compares_responses
    ]
    return max(compared, default=1)


def role_models(
    job: RLHFJob,
    graphs: Mapping[GraphName, Graph],
    device: Device,
    meshes: Mapping[str, Mesh],
    shapes: Mapping[str, DecoderShape],
    default_tokens: int,
    recomputed: Collection[str] = (),
) -> tuple[RoleModel, ...]:
    """Every role that holds weights.

    Args:
        job: the manifest.
        graphs: traced from it.
        device: what ranks compute on.
        meshes: the ranks of each of these roles.
        shapes: of their models.
        default_tokens: of a micro-batch, where the manifest leaves it out.
        recomputed: roles whose activations are computed again for the backward pass.
    """
    step = graphs[GraphName.STEP]
    policy = policy_of(step)

    def model(role: str, found: JobRole, head: Head) -> RoleModel:
        training = job.spec.model_for(role).training
        sizes = _sizes(job, step, role, meshes[role], default_tokens)
        return RoleModel(
            role=role,
            mesh=meshes[role],
            device=device,
            head=head,
            is_trained=found.is_trained,
            generates=found.generates,
            shape=shapes[role],
            precision=resolve_precision(training.precision, device),
            micro_batch_tokens=sizes.micro_batch,
            peak_tokens=sizes.peak,
            batch_tokens=sizes.batch,
            longest_shared_tokens=sizes.longest_shared,
            is_saved=is_saved(job, role, found, policy),
            recompute=role in recomputed,
            engine=training.engine,
            sequence_parallel=training.parallelism.sequence,
            distributed_optimizer=training.distributed_optimizer,
        )

    return tuple(
        model(role, found, found.head)
        for role, found in job_roles(graphs).items()
        if found.head is not None
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


def _sizes(job: RLHFJob, step: Graph, role: str, mesh: Mesh, default_tokens: int) -> _Sizes:
    rows, together = step.most_rows(role), rows_together(step, role)
    tokens = job.spec.model_for(role).training.micro_batch_tokens or default_tokens
    batch = rank_tokens(job, rows, mesh.data, together)
    longest = longest_sequence_tokens(job)  # one that is longer than a micro-batch runs alone
    shared = longest_shared_tokens(job, rows, tokens)
    return _Sizes(tokens, min(max(tokens, longest), batch), batch, shared)
