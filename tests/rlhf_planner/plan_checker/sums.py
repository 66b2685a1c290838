"""A plan's memory and seconds, summed up anew: rank by rank and phase by phase, from the plan's own
lines, and from below by what must be there at least."""

from __future__ import annotations

import pytest

from rlhf_api.calls import CallKind, Phase
from rlhf_api.plan import GraphName, OffloadDepth, Plan, RolePlan
from rlhf_api.plan_memory import MemoryPlan, MemoryUse
from rlhf_api.spec.models import Precision
from rlhf_api.spec.rollout import StageFusionType
from rlhf_planner.problem.problem import PlanningProblem

from .checker import ranks_of


def check_memory(problem: PlanningProblem, plan: Plan) -> None:
    """Every device is in one group, holds what its calls need, and never more than it has."""
    for pool in plan.pools:
        groups = [each for each in plan.memory if each.pool == pool.name]
        ranks = [rank for group in groups for rank in group.ranks]
        assert sorted(ranks) == list(range(pool.nodes * pool.devices_per_node))
    for memory in plan.memory:
        assert memory.capacity_bytes == plan.pool(memory.pool).memory_bytes_per_device
        for phase in phases_of(memory):
            held = sum(item.bytes for item in memory.items if phase in item.phases)
            assert least_bytes(problem, plan, memory, phase) <= held <= memory.capacity_bytes
        check_phases(plan, memory)


def phases_of(memory: MemoryPlan) -> set[Phase]:
    """All that its lines name."""
    return {phase for item in memory.items for phase in item.phases}


def check_phases(plan: Plan, memory: MemoryPlan) -> None:
    """Whatever runs on a group's devices has a phase, and there are no devices in the group on
    which it does not."""
    devices = {(memory.pool, rank) for rank in memory.ranks}
    named = phases_of(memory)
    for call in plan.calls:
        if call.kind not in (CallKind.TRAIN, CallKind.INFER, CallKind.GENERATE):
            continue
        shared = ranks_of(call.mesh) & devices
        assert shared in (set(), devices)
        if shared:
            assert Phase(role=call.role, kind=call.kind) in named


def least_bytes(problem: PlanningProblem, plan: Plan, memory: MemoryPlan, phase: Phase) -> float:
    """What a device of a group must hold in a phase: states of the roles that stay there, gradients
    of one that is trained, weights and cache of one that generates."""
    total = 0.0
    first = {(memory.pool, memory.first_rank)}
    for role in plan.roles:
        if role.mesh is not None and ranks_of(role.mesh) & first:
            total += _state_bytes(problem, role, phase)
    for engines in plan.generations:
        if ranks_of(engines.mesh) & first and (
            phase == Phase(role=engines.role, kind=CallKind.GENERATE)
            or not engines.release_during_training
        ):
            facts = problem.models[engines.role]
            number = 2 if facts.precision is Precision.BFLOAT16 else 4
            total += engines.kv_cache_bytes
            total += number * facts.shape.num_parameters / engines.mesh.tensor
            if engines.packs_weights:
                shape = facts.shape
                feed_forward = 3 * shape.hidden_size * shape.intermediate_size
                total += number * shape.num_layers * feed_forward / engines.mesh.tensor
    return total


def _state_bytes(problem: PlanningProblem, role: RolePlan, phase: Phase) -> float:
    assert role.mesh is not None
    facts = problem.models[role.role]
    each = facts.num_parameters / len(role.mesh.ranks)
    is_busy = phase.role == role.role and phase.kind in (CallKind.TRAIN, CallKind.INFER)
    if role.offload is OffloadDepth.EVERYTHING and not is_busy:
        return 0.0
    if not role.is_trained:
        return each * (2 if facts.precision is Precision.BFLOAT16 else 4)
    gradients = 4 if is_busy and phase.kind is CallKind.TRAIN else 0
    return each * (12 + gradients)


def check_offloaded(plan: Plan) -> None:
    """What has left its devices is in no sum of others' calls."""
    away = {r.role for r in plan.roles if r.offload is OffloadDepth.EVERYTHING}
    states = (MemoryUse.WEIGHTS, MemoryUse.MASTER_WEIGHTS, MemoryUse.OPTIMIZER)
    for memory in plan.memory:
        for item in memory.items:
            if item.role in away and item.what in states:
                copies = (CallKind.COPY,)
                assert all(p.role == item.role or p.kind in copies for p in item.phases)


def check_seconds(problem: PlanningProblem, plan: Plan) -> None:
    """A step is no shorter than what any rank does in it, and no longer than all calls in turn."""
    if plan.estimate is None:
        return
    seconds, step = plan.estimate.seconds_by_call, plan.estimate.step_seconds
    calls = [c for c in plan.calls if c.graph is GraphName.STEP and c.mesh is not None]
    assert [call.call for call in calls] == [each.call for each in plan.estimate.calls]
    busy: dict[tuple[str, int], float] = {}
    for call in calls:
        for rank in ranks_of(call.mesh, call.source_mesh):
            busy[rank] = busy.get(rank, 0.0) + seconds[call.call] * call.expected_count
    assert max(busy.values()) <= step * (1 + 1e-9)
    assert step <= sum(seconds[c.call] * c.expected_count for c in calls) * (1 + 1e-9)
    idle = 1.0 - sum(busy.values()) / (step * plan.num_devices)
    assert plan.estimate.idle_share == pytest.approx(max(0.0, idle), abs=1e-9)
    if plan.search is not None:  # it is about plans whose stages do not overlap
        unfused = plan.search.unfused_seconds or step
        assert unfused >= step or problem.fixed.stage_fusion is StageFusionType.ALWAYS
        fusions = [each.fusion for each in plan.generations if each.fusion is not None]
        early = sum(seconds.get(call, 0.0) for each in fusions for call in each.calls)
        assert unfused - step <= early * (1 + 1e-9)  # no more is hidden than begins early
        assert plan.search.is_optimal == (plan.search.bound_seconds >= unfused * (1 - 1e-12))
        assert plan.search.bound_seconds <= unfused * (1 + 1e-12)
        for other in plan.search.alternatives:
            assert other.step_seconds is None or unfused <= other.step_seconds
