"""What the memory model has to know of every role with a model."""

from __future__ import annotations

from collections.abc import Mapping

from rlhf_api import RLHFJob
from rlhf_api.plan import GraphName, RoleKind
from rlhf_api.spec.models import Precision
from rlhf_api.spec.resources import Device
from rlhf_flow.graph import Graph
from rlhf_flow.job_graphs import ACTOR
from rlhf_flow.planning.inventory import DeviceInventory
from rlhf_flow.planning.memory import RoleModel
from rlhf_flow.planning.shapes import DecoderShape

MICRO_BATCH_TOKENS: Mapping[Device, int] = {Device.CPU: 4096, Device.GPU: 16384}
"""Default of training.microBatchTokens: on CPUs more fall out of the cache, on GPUs fewer leave
the device idle."""

MAX_SHARED_TOKENS = 8192
"""Longest sequence with several responses: its mask has the square of it, in bytes."""


def job_roles(graphs: Mapping[GraphName, Graph]) -> dict[str, RoleKind]:
    """Kind of every role of all graphs, the step's first."""
    roles = dict(graphs[GraphName.STEP].roles)
    for graph in graphs.values():
        for role, kind in graph.roles.items():
            roles.setdefault(role, kind)
    return roles


def resolve_precision(precision: Precision, device: Device) -> Precision:
    """float32 or bfloat16: what `Auto` means on a device."""
    if precision is not Precision.AUTO:
        return precision
    return Precision.BFLOAT16 if device is Device.GPU else Precision.FLOAT32


def longest_sequence_tokens(job: RLHFJob) -> int:
    """Longest prompt plus longest response."""
    return job.spec.rollout.max_prompt_tokens + job.spec.rollout.max_response_tokens


def longest_shared_tokens(job: RLHFJob, rows_per_prompt: int) -> int:
    """Longest sequence of a prompt and several of its responses; 0 where none is shared."""
    if rows_per_prompt == 1:
        return 0
    rollout = job.spec.rollout
    everything = rollout.max_prompt_tokens + rows_per_prompt * rollout.max_response_tokens
    return min(everything, MAX_SHARED_TOKENS)


def micro_batch_tokens(job: RLHFJob, role: str, device: Device) -> int:
    """Padded tokens of a micro-batch, as the manifest says or as suits the device."""
    return job.spec.model_for(role).training.micro_batch_tokens or MICRO_BATCH_TOKENS[device]


def is_saved(job: RLHFJob, role: str, kind: RoleKind) -> bool:
    """Whether the weights of a role with a model cannot be had from their source any more."""
    takes_actors = job.spec.schedule.warm_start is not None and job.spec.origin_of(role) == ACTOR
    return kind.is_trained or takes_actors


def rank_tokens(job: RLHFJob, rows_per_prompt: int, num_ranks: int) -> int:
    """Tokens of a rank's share of a step's batch when every sequence is as long as it can be."""
    rows = job.spec.schedule.prompts_per_step * rows_per_prompt
    warm_start = job.spec.schedule.warm_start
    if warm_start is not None:
        rows = max(rows, warm_start.prompts_per_step)
    return -(-rows // num_ranks) * longest_sequence_tokens(job)


def role_models(
    job: RLHFJob,
    graphs: Mapping[GraphName, Graph],
    pool: DeviceInventory,
    shapes: Mapping[str, DecoderShape],
) -> tuple[RoleModel, ...]:
    """Every role that holds weights."""
    rows = {role: graphs[GraphName.STEP].most_rows(role) for role in job_roles(graphs)}
    return tuple(
        RoleModel(
            role=role,
            kind=kind,
            shape=shapes[role],
            precision=resolve_precision(job.spec.model_for(role).training.precision, pool.device),
            micro_batch_tokens=micro_batch_tokens(job, role, pool.device),
            peak_tokens=min(
                max(
                    micro_batch_tokens(job, role, pool.device),
                    longest_sequence_tokens(job),  # a longer one runs alone
                    longest_shared_tokens(job, rows[role]),
                ),
                rank_tokens(job, rows[role], pool.num_devices),
            ),
            longest_shared_tokens=longest_shared_tokens(job, rows[role]),
            is_saved=is_saved(job, role, kind),
            recompute=job.spec.model_for(role).training.activation_recompute,
        )
        for role, kind in job_roles(graphs).items()
        if kind.has_model
    )
