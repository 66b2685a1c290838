"""All memory of a group's devices but that of generation, by role and phase."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from rlhf_api.calls import IDLE, CallKind, Phase, call_phase
from rlhf_api.mesh import Mesh
from rlhf_api.plan import OffloadDepth
from rlhf_api.plan_memory import MemoryItem, MemoryUse
from rlhf_api.spec.models import TrainingEngineType
from rlhf_api.spec.resources import Device
from rlhf_planner.memory.fsdp import fsdp_checkpoint_bytes, fsdp_items
from rlhf_planner.memory.megatron import megatron_checkpoint_bytes, megatron_items
from rlhf_planner.memory.offloading import (
    Depths,
    phases_on_device,
    required_standby,
    roles_on_device,
)
from rlhf_planner.memory.role_model import RoleModel, RolePhases, process_items
from rlhf_planner.placement.placement import DeviceGroup, GroupMemory
from rlhf_planner.placement.strategy import RoleStrategy
from rlhf_planner.problem.problem import PlanningProblem, RoleSpec, Workload
from rlhf_sizing.limits import MAX_SHARED_TOKENS

# Default of training.microBatchTokens: on CPUs more fall out of the cache, on GPUs fewer leave the
# device idle.
MICRO_BATCH_TOKENS: Mapping[Device, int] = {Device.CPU: 4096, Device.GPU: 16384}


def longest_shared_tokens(workload: Workload, rows_per_prompt: int, micro_batch_tokens: int) -> int:
    """Longest sequence of a prompt and several of its responses; 0 if prompts are not shared."""
    # The runtime joins responses only below the limits of a mask and of a micro-batch.
    if rows_per_prompt == 1:
        return 0
    everything = workload.max_prompt_tokens + rows_per_prompt * workload.max_response_tokens
    return min(everything, MAX_SHARED_TOKENS, micro_batch_tokens)


def rank_tokens(
    workload: Workload, rows_per_prompt: int, num_ranks: int, rows_together: int
) -> int:
    """Tokens of a rank's share of a step's batch if every sequence has its maximum length.

    Args:
        workload: of the job.
        rows_per_prompt: of the batch.
        num_ranks: ranks that share it.
        rows_together: rows of a prompt that must be on one rank.
    """
    rows = max(workload.prompts_per_step * rows_per_prompt, workload.other_rows)
    parts = num_ranks * rows_together
    return -(-rows // parts) * rows_together * workload.max_sequence_tokens


def role_model(problem: PlanningProblem, role: str, strategy: RoleStrategy) -> RoleModel:
    """A role as its strategy computes it; what is open takes its default."""
    facts, mesh = problem.models[role], strategy.mesh
    default_tokens = strategy.micro_batch_tokens or MICRO_BATCH_TOKENS[problem.device]
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
        recompute=bool(strategy.recompute),
        engine=facts.engine,
        sequence_parallel=facts.sequence_parallel,
        distributed_optimizer=facts.distributed_optimizer,
        reads_kept_tokens=facts.reads_kept_tokens,
    )


class _Sizes(NamedTuple):
    """Padded tokens on a rank."""

    # Limit of a micro-batch.
    micro_batch: int
    # Largest micro-batch of the job.
    peak: int
    # All tokens of a call.
    batch: int
    # Longest sequence of a prompt and several responses; 0 if prompts are not shared.
    longest_shared: int


def _sizes(workload: Workload, facts: RoleSpec, mesh: Mesh, default_tokens: int) -> _Sizes:
    tokens = facts.fixed.micro_batch_tokens or default_tokens
    batch = rank_tokens(workload, facts.rows_per_prompt, mesh.data, facts.rows_together)
    # A sequence that is longer than a micro-batch runs alone.
    longest = workload.max_sequence_tokens
    shared = longest_shared_tokens(workload, facts.rows_per_prompt, tokens)
    return _Sizes(tokens, min(max(tokens, longest), batch), batch, shared)


def role_items(
    model: RoleModel,
    phases: tuple[Phase, ...],
    depth: OffloadDepth = OffloadDepth.NOTHING,
    own: Collection[Phase] = (),
) -> tuple[MemoryItem, ...]:
    """Memory of a role on each of its devices, without generation.

    Args:
        model: the role.
        phases: all phases of these devices.
        depth: how much of it leaves them while others work there.
        own: the phases with all of it on its devices, if some of it leaves.
    """
    infer, train = (
        (phase,) if (phase := call_phase(model.role, kind)) in phases else ()
        for kind in (CallKind.INFER, CallKind.TRAIN)
    )
    # A fully offloaded role has nothing on its devices outside its own phases; one that only drops
    # derived state keeps the rest there in all phases.
    complete = tuple(phase for phase in phases if phase in own)
    stored = complete if depth is OffloadDepth.EVERYTHING else phases
    derived = phases if depth is OffloadDepth.NOTHING else complete
    role_phases = RolePhases(stored, derived, infer, train)
    is_megatron = model.engine is TrainingEngineType.MEGATRON
    items = megatron_items(model, role_phases) if is_megatron else fsdp_items(model, role_phases)
    return tuple(
        MemoryItem(role=model.role, what=what, bytes=size, phases=where)
        for what, size, where in items
        if size and where
    )


def checkpoint_items(model: RoleModel, phases: tuple[Phase, ...]) -> tuple[MemoryItem, ...]:
    """The host's copy of a saved role's state, while a checkpoint is written."""
    if not model.is_saved:
        return ()
    is_megatron = model.engine is TrainingEngineType.MEGATRON
    size = megatron_checkpoint_bytes(model) if is_megatron else fsdp_checkpoint_bytes(model)
    item = MemoryItem(role=model.role, what=MemoryUse.CHECKPOINT, bytes=size, phases=phases)
    return (item,)


# Kinds of calls for which a device may hold a role.
MODEL_CALLS = (CallKind.GENERATE, CallKind.INFER, CallKind.TRAIN)


def job_phases(
    problem: PlanningProblem, group: DeviceGroup, offloaded: Collection[str] = ()
) -> tuple[Phase, ...]:
    """The phases in which a group's memory differs."""
    # These are its calls, reshards, and copies for which an offloaded role is loaded.
    calls = [
        call_phase(call.role, call.kind)
        for graph in problem.graphs.values()
        for call in graph.calls_of_kind(*MODEL_CALLS)
        if call.role is not None
        and call.role in (group.generating if call.kind is CallKind.GENERATE else group.roles)
    ]
    engines = [
        call_phase(role, kind)
        for role, facts in problem.models.items()
        if facts.generates
        for kind, role_names in (
            (CallKind.RESHARD, {*group.roles, *group.generating}),
            (CallKind.GENERATE, group.generating),
        )
        if role in role_names
    ]
    copies = [
        call_phase(call.role, call.kind)
        for graph in problem.graphs.values()
        for call in graph.calls_of_kind(CallKind.COPY)
        if call.role is not None
        and call.role in group.roles
        and roles_on_device(call) & {*offloaded}
    ]
    return tuple(dict.fromkeys([*engines, *calls, *copies])) or (IDLE,)


def static_memory(
    problem: PlanningProblem,
    group: DeviceGroup,
    models: Sequence[RoleModel],
    depths: Depths,
) -> GroupMemory:
    """All memory of a group's devices but that of generation.

    Args:
        depths: of the roles that leave their devices.
    """
    pool, phases = group.pool, job_phases(problem, group, depths)
    items = [
        *process_items(pool.device, pool.memory_bytes_per_device, phases),
        *required_standby(problem.fixed, pool, phases),
    ]
    for model in models:
        if model.role in group.roles:
            depth = depths.get(model.role, OffloadDepth.NOTHING)
            items += resident_items(problem, model, phases, depth)
    return GroupMemory(group, phases, tuple(items))


def resident_items(
    problem: PlanningProblem, model: RoleModel, phases: tuple[Phase, ...], depth: OffloadDepth
) -> tuple[MemoryItem, ...]:
    """Memory of a role on each of its devices, without generation.

    Args:
        problem: the planning problem.
        model: the role.
        phases: all phases of these devices.
        depth: how much of it leaves them while others work there.
    """
    items = role_items(model, phases, depth, own_phases(problem, model.role))
    # Ranks on CPUs share their memory with the copies that are being written.
    if problem.device is Device.CPU and problem.fixed.saves_while_training:
        items += checkpoint_items(model, phases)
    return items


def own_phases(problem: PlanningProblem, role: str) -> frozenset[Phase]:
    """Phases in which a role is on its devices, even if it leaves them."""
    return phases_on_device(role, [c for graph in problem.graphs.values() for c in graph.calls])
