"""Seconds of each call of a planned step.

    Train, Infer, Generate         as of training.py, inference.py and generation.py of seconds/
    Reshard, Load, Offload, Copy   as of resharding.py and moves.py
    Release, Compute               what every call takes: its order, and the columns that it reads
    Finish                         the end of a Generate that few engines finish, which then is
                                   shorter, as of split_generation.py of seconds/

Of calls that begin before it has ended both parts are Infer calls on their rows.
Batches of auxiliary losses are further micro-batches of the same updates. What runs beside the
ranks, verifiers and the driver, takes no time here: nobody knows how long user code takes, and
others go on meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from rlhf_api.calls import TRANSITIONS, CallKind
from rlhf_api.plan import CallPlan, GraphName, Mesh, Plan
from rlhf_flow.planning.estimate.call_batches import (
    call_batch,
    num_token_columns,
    split_batch,
)
from rlhf_flow.planning.estimate.model_call_seconds import (
    generate_call_seconds,
    infer_batch_seconds,
    infer_call_seconds,
    split_generation,
    train_call_seconds,
)
from rlhf_flow.planning.estimate.planned_roles import planned_load
from rlhf_flow.planning.generation_memory import GenerationLoad
from rlhf_flow.planning.memory import RoleModel
from rlhf_flow.planning.problem import PlanningProblem
from rlhf_flow.planning.seconds.call_seconds import CallSeconds, in_turn
from rlhf_flow.planning.seconds.links import Links
from rlhf_flow.planning.seconds.micro_batches import Batch
from rlhf_flow.planning.seconds.moves import (
    DISPATCH_SECONDS,
    columns_seconds,
    copy_seconds,
    load_seconds,
    offload_seconds,
)
from rlhf_flow.planning.seconds.resharding import reshard_seconds
from rlhf_flow.planning.seconds.split_generation import SplitGeneration
from rlhf_flow.planning.stage_fusion.fused_plan import Fusion, fusion_of
from rlhf_flow.step.calls import CopyOptions, ModelCall
from rlhf_flow.trace.graph import Graph


@dataclass(frozen=True)
class CallPrices:
    """What calls of a plan's step take."""

    problem: PlanningProblem
    plan: Plan
    models: Mapping[str, RoleModel]
    """Of every role with a model."""
    links: Mapping[str, Links]
    """Of every pool."""

    @property
    def graph(self) -> Graph:
        """The step's."""
        return self.problem.graphs[GraphName.STEP]

    def parts(self, planned: CallPlan) -> tuple[CallSeconds, ...]:
        """One run of a call of the step, alone on its ranks; nothing beside them. In two parts
        where it begins with responses that ended early."""
        if planned.mesh is None:
            return (CallSeconds(),)
        if planned.kind in TRANSITIONS:
            order = CallSeconds(transfer=DISPATCH_SECONDS)
            return (in_turn([order, self._transition(planned)]),)
        call = self.graph.call(planned.call)
        batch = call_batch(self.problem, call)
        if self.fusion is None or planned.call not in self.fusion.calls:
            return (in_turn([self._columns(call, planned.mesh, batch), self._work(call, planned)]),)
        assert self._split is not None
        return tuple(
            self._on_rows(call, planned.mesh, each) for each in split_batch(batch, self._split)
        )

    def _on_rows(self, call: ModelCall, mesh: Mesh, batch: Batch | None) -> CallSeconds:
        """A call that runs a role forward over some rows; without any, its order."""
        if batch is None:
            return CallSeconds(transfer=DISPATCH_SECONDS)
        model = self._model(call.role)
        inferred = infer_batch_seconds(batch, model, self._links(model))
        return in_turn([self._columns(call, mesh, batch), inferred])

    @cached_property
    def fusion(self) -> Fusion | None:
        """What overlaps with the end of generation."""
        return fusion_of(self.plan)

    @cached_property
    def _split(self) -> SplitGeneration | None:
        """The call whose last responses are finished apart."""
        if self.fusion is None:
            return None
        call = self.graph.call(self.fusion.generate)
        return split_generation(self.problem, call, *self._engines(call), self.fusion)

    def _work(self, call: ModelCall, planned: CallPlan) -> CallSeconds:
        match call.kind:
            case CallKind.TRAIN:
                model = self._model(call.role)
                links, parts = self._links(model), planned.mini_batches
                return train_call_seconds(self.problem, call, model, links, parts)
            case CallKind.INFER:
                model = self._model(call.role)
                return infer_call_seconds(self.problem, call, model, self._links(model))
            case CallKind.GENERATE:
                return self._generate(call)
            case CallKind.COPY:
                assert isinstance(call.options, CopyOptions)
                model = self._model(call.role)
                source = self._model(call.options.source)
                return copy_seconds(source, model, self._links(model))
            case _:
                return CallSeconds()

    def _generate(self, call: ModelCall) -> CallSeconds:
        if self._split is not None and self.fusion and self.fusion.generate == call.id:
            return self._split.generate_seconds
        return generate_call_seconds(self.problem, call, *self._engines(call))

    def _engines(
        self, call: ModelCall
    ) -> tuple[RoleModel, GenerationLoad, tuple[Mesh, int], Links]:
        """Of a call that generates: the role, what is asked of its engines, these, and links."""
        model = self._model(call.role)
        generation = self.plan.generation(model.role)
        assert generation is not None
        load = planned_load(self.problem, model, generation)
        return model, load, (generation.mesh, generation.kv_cache_bytes), self._links(model)

    def _transition(self, planned: CallPlan) -> CallSeconds:
        model = self._model(planned.role)
        links, role = self._links(model), self.plan.role(model.role)
        assert role is not None
        match planned.kind:
            case CallKind.LOAD:
                return load_seconds(model, role.offload, links)
            case CallKind.OFFLOAD:
                return offload_seconds(model, role.offload, links)
            case CallKind.RESHARD:
                generation = self.plan.generation(model.role)
                assert generation is not None
                trained = planned_load(self.problem, model, generation).trained
                return reshard_seconds(trained, generation.mesh, links)
            case CallKind.FINISH:
                assert self._split is not None
                return self._split.finish_seconds
            case _:
                return CallSeconds()

    def _columns(self, call: ModelCall, mesh: Mesh, batch: Batch) -> CallSeconds:
        crosses = any(
            self._nodes(source.mesh) - self._nodes(mesh)
            for edge in self.graph.data_edges
            if edge.target == call.id
            and (source := self.plan.call(GraphName.STEP, edge.source)) is not None
        )
        return columns_seconds(
            batch,
            num_token_columns(call),
            mesh.data,
            self.links[mesh.pool],
            crosses_nodes=crosses,
        )

    def _nodes(self, mesh: Mesh | None) -> set[tuple[str, int]]:
        if mesh is None:
            return set()
        per_node = self.links[mesh.pool].devices_per_node
        return {(mesh.pool, rank // per_node) for rank in mesh.ranks}

    def _model(self, role: str | None) -> RoleModel:
        assert role is not None
        return self.models[role]

    def _links(self, model: RoleModel) -> Links:
        return self.links[model.mesh.pool]
