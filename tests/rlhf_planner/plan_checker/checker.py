"""Whether a plan is one that the runtime can execute: everything is said of it anew, naively, from
the plan's own data and the problem's shapes. No code of the planner is used, so that what it
believes of itself is not what it is checked against."""

from __future__ import annotations

from collections import Counter
from itertools import combinations

from rlhf_api.calls import TRANSITIONS, CallKind
from rlhf_api.mesh import Mesh
from rlhf_api.plan import CallPlan, GraphName, OffloadDepth, Plan
from rlhf_api.spec.models import Offload, TrainingEngineType
from rlhf_api.spec.resources import Device
from rlhf_planner.problem.problem import PlanningProblem

ENGINE_CALLS = (CallKind.GENERATE, CallKind.RESHARD, CallKind.RELEASE)
TRAINER_CALLS = (CallKind.TRAIN, CallKind.INFER, CallKind.COPY, CallKind.RESHARD)
Rank = tuple[str, int]


def ranks_of(*meshes: Mesh | None) -> set[Rank]:
    """Of all pools."""
    return {(mesh.pool, rank) for mesh in meshes if mesh is not None for rank in mesh.ranks}


def check_calls(problem: PlanningProblem, plan: Plan) -> None:
    """Every call of every graph is there once, in its order, and runs where its role is."""
    for name, graph in problem.graphs.items():
        planned = [call for call in plan.calls if call.graph is name]
        assert len({call.call for call in planned}) == len(planned)
        own = [call for call in planned if call.kind not in TRANSITIONS]
        assert [(c.call, c.role, c.kind, c.reads, c.writes) for c in own] == [
            (c.id, c.role, c.kind, c.reads, c.writes) for c in graph.calls
        ]
    assert {call.graph for call in plan.calls} == {*problem.graphs}
    for call in plan.calls:
        role = plan.role(call.role or plan.policy)
        assert role is not None
        if call.kind in (CallKind.SCORE, CallKind.SAVE):
            assert call.mesh is None
        elif call.kind is CallKind.FINISH:
            engines = plan.generation(role.role)
            assert engines is not None and call.mesh is not None
            assert {*call.mesh.tensor_groups} <= {*engines.mesh.tensor_groups}
        elif call.kind in ENGINE_CALLS:
            engines = plan.generation(role.role)
            assert engines is not None and call.mesh == engines.mesh
        else:
            assert call.mesh == role.mesh and call.mesh is not None
        assert call.source_mesh == (role.mesh if call.kind is CallKind.RESHARD else None)
        assert call.mini_batches in (1, problem.workload.updates_per_epoch)


def check_meshes(problem: PlanningProblem, plan: Plan) -> None:
    """Models are cut into parts that come out even, tensor ranks share a node, engines too."""
    for role in plan.roles:
        if role.mesh is None:
            assert role.role not in problem.models
            continue
        facts, mesh = problem.models[role.role], role.mesh
        check_mesh(plan, mesh)
        assert role.engine is facts.engine and mesh.tensor_stride == 1
        if role.engine is TrainingEngineType.FSDP:
            assert mesh.tensor == mesh.pipeline == 1
        assert facts.shape.num_layers % mesh.pipeline == 0
        assert facts.shape.num_attention_heads % mesh.tensor == 0
        assert facts.shape.num_key_value_heads % mesh.tensor == 0
        assert facts.shape.intermediate_size % mesh.tensor == 0
        assert facts.fixed.tensor in (None, mesh.tensor) or problem.fixed.placement.groups
        assert facts.fixed.pipeline in (None, mesh.pipeline) or problem.fixed.placement.groups
    for engines in plan.generations:
        shape, tensor = problem.models[engines.role].shape, engines.mesh.tensor
        check_mesh(plan, engines.mesh)
        assert engines.mesh.pipeline == 1
        assert shape.num_attention_heads % tensor == shape.intermediate_size % tensor == 0
        heads = shape.num_key_value_heads
        assert heads % tensor == 0 or tensor % heads == 0
        assert problem.fixed.engine_tensor in (None, tensor) or problem.fixed.placement.groups


def check_mesh(plan: Plan, mesh: Mesh) -> None:
    """It lies in its pool; every rank is in one tensor group, whose ranks share a node."""
    pool = plan.pool(mesh.pool)
    assert mesh.tensor * mesh.pipeline * mesh.data == len(mesh.ranks)
    assert mesh.ranks.start >= 0 and mesh.ranks.stop <= pool.nodes * pool.devices_per_node
    in_groups = Counter(rank for group in mesh.tensor_groups for rank in group)
    assert in_groups == Counter(mesh.ranks)
    for group in mesh.tensor_groups:
        assert len({rank // pool.devices_per_node for rank in group}) == 1


def check_roles(problem: PlanningProblem, plan: Plan) -> None:
    """What is decided already stays, what is not is one of the settings that there are."""
    assert plan.pools == problem.pools
    assert {role.role for role in plan.roles if role.mesh} == {*problem.models}
    most, least = (16384, 1024) if plan.device is Device.GPU else (4096, 1024)
    for role in plan.roles:
        if role.mesh is None:
            continue
        facts, tokens = problem.models[role.role], role.micro_batch_tokens
        assert tokens is not None
        assert tokens == facts.fixed.micro_batch_tokens or (
            facts.fixed.micro_batch_tokens is None
            and least <= tokens <= most
            and most % tokens == 0
        )
        assert role.is_trained or not role.recomputes
        if role.is_trained and facts.fixed.recompute is not None:
            assert role.recomputes == facts.fixed.recompute
        allowed = {
            Offload.AUTO: {*OffloadDepth},
            Offload.NEVER: {OffloadDepth.NOTHING},
            Offload.ALWAYS: {OffloadDepth.EVERYTHING},
            Offload.DERIVED: {OffloadDepth.DERIVED, OffloadDepth.NOTHING},
        }
        assert role.offload in allowed[facts.fixed.offload]


def check_engines(problem: PlanningProblem, plan: Plan) -> None:
    """Who generates has engines, in its pool, that no other has GPUs of, with room for a longest
    sequence."""
    generating = {role for role, facts in problem.models.items() if facts.generates}
    assert {engines.role for engines in plan.generations} == generating
    tokens = problem.workload.max_prompt_tokens + problem.workload.max_response_tokens
    for engines in plan.generations:
        facts, role = problem.models[engines.role], plan.role(engines.role)
        assert role is not None and role.mesh is not None
        assert role.mesh.pool == engines.mesh.pool
        heads = max(1, facts.shape.num_key_value_heads // engines.mesh.tensor)
        each = 2 * facts.shape.num_layers * heads * facts.shape.head_dim
        number = 2 if plan.device is Device.GPU else 4
        assert engines.kv_cache_bytes >= tokens * each * number
        assert engines.max_sequence_tokens == tokens
    for one, other in combinations(plan.generations, 2):
        shared = ranks_of(one.mesh) & ranks_of(other.mesh)
        assert not shared or (plan.device is Device.CPU and one.mesh == other.mesh)


def check_transitions(problem: PlanningProblem, plan: Plan) -> None:
    """Step by step: engines generate with weights that are current, roles work where they are
    loaded, and nothing is on devices that others need."""
    for name in problem.graphs:
        state = _Pass(plan)
        for call in plan.calls:
            if call.graph is name:
                state.run(call)
        assert not state.loaded


def check_fusion(plan: Plan) -> None:
    """Responses are finished where a plan says that calls begin before; these read nothing but the
    responses, and are on no device of the engines that finish."""
    fused = [each for each in plan.generations if each.fusion is not None]
    finishes = [call for call in plan.calls if call.kind is CallKind.FINISH]
    assert len(fused) == len(finishes) <= 1
    for engines, finish in zip(fused, finishes, strict=True):
        assert engines.fusion is not None and finish.graph is GraphName.STEP
        assert finish.role == engines.role and engines.fusion.threshold_rows >= 1
        step = [call for call in plan.calls if call.graph is GraphName.STEP]
        (generate,) = [call for call in step if call.kind is CallKind.GENERATE]
        assert step.index(finish) == step.index(generate) + 1
        begin = [call for call in step if call.call in engines.fusion.calls]
        assert [call.call for call in begin] == [*engines.fusion.calls]
        for call in begin:
            assert call.kind in (CallKind.INFER, CallKind.SCORE)
            assert {*call.reads} <= {*generate.reads, *generate.writes}
            assert not ranks_of(call.mesh) & ranks_of(finish.mesh)
            before, after = plan.transitions(GraphName.STEP, call.call)
            assert not before and not after


class _Pass:
    """What devices hold during a pass of a graph."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.away = {r.role for r in plan.roles if r.offload is not OffloadDepth.NOTHING}
        self.loaded: set[str] = set()
        self.current: set[str] = set()
        """Roles whose engines have their newest weights."""
        self.awake: set[str] = set()
        """Roles whose engines hold memory that they give back."""
        self.region = ""

    def run(self, call: CallPlan) -> None:
        region = call.call.rpartition("/")[0]
        if region != self.region:  # it may not have run
            self.region = region
            self.current.clear()
        match call.kind:
            case CallKind.LOAD:
                assert call.role in self.away - self.loaded
                self.loaded.add(str(call.role))
                return
            case CallKind.OFFLOAD:
                assert call.role in self.loaded
                self.loaded.remove(str(call.role))
                return
            case CallKind.RELEASE:
                assert call.role in self.awake
                self.awake.remove(str(call.role))
                self.current.discard(str(call.role))
                return
            case CallKind.SCORE | CallKind.SAVE | CallKind.COMPUTE:
                return
        self._work(call)

    def _work(self, call: CallPlan) -> None:
        used = ranks_of(call.mesh, call.source_mesh)
        needed = {call.role} if call.kind in TRAINER_CALLS else set()
        for role in self.loaded - needed:
            if call.kind is not CallKind.COPY:
                planned = self.plan.role(role)
                assert planned is not None and not ranks_of(planned.mesh) & used
        assert not needed & self.away - self.loaded
        for role in self.awake - {call.role}:
            engines = self.plan.generation(role)
            assert engines is not None and not ranks_of(engines.mesh) & used
        role, engines = str(call.role), self.plan.generation(str(call.role))
        if call.kind in (CallKind.GENERATE, CallKind.FINISH):
            assert role in self.current
        elif call.kind is CallKind.RESHARD:
            assert engines is not None
            self.current.add(role)
            if engines.release_during_training:
                self.awake.add(role)
        elif call.kind in (CallKind.TRAIN, CallKind.COPY):
            self.current.discard(role)


def steps_with(plan: Plan, kind: CallKind) -> list[CallPlan]:
    """Calls of the step of a kind."""
    return [c for c in plan.calls if c.graph is GraphName.STEP and c.kind is kind]
