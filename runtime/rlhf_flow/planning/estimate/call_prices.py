"""Seconds of each call of a planned step.

    Train, Infer, Generate         as of training.py, inference.py and generation.py of seconds/
    Reshard, Load, Offload, Copy   as of resharding.py and moves.py
    Release, Compute               what every call takes: its order, and the columns that it reads

Batches of auxiliary losses are further micro-batches of the same updates. What runs beside the
ranks, verifiers and the driver, takes no time here: nobody knows how long user code takes, and
others go on meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from rlhf_api.calls import TRANSITIONS, CallKind
from rlhf_api.plan import CallPlan, GraphName, Mesh, Plan
from rlhf_flow.calls import CopyOptions, ModelCall, TrainOptions
from rlhf_flow.graph import Graph
from rlhf_flow.planning.estimate.call_batches import (
    call_batch,
    generation_call,
    num_token_columns,
    pretraining_batch,
)
from rlhf_flow.planning.estimate.planned_roles import planned_load
from rlhf_flow.planning.memory import RoleModel
from rlhf_flow.planning.problem import PlanningProblem
from rlhf_flow.planning.seconds.analytic_layers import analytic_layers
from rlhf_flow.planning.seconds.call_seconds import CallSeconds, in_turn
from rlhf_flow.planning.seconds.generation import generate_seconds
from rlhf_flow.planning.seconds.inference import infer_seconds
from rlhf_flow.planning.seconds.layers import LayerSeconds
from rlhf_flow.planning.seconds.links import Links
from rlhf_flow.planning.seconds.moves import (
    DISPATCH_SECONDS,
    columns_seconds,
    copy_seconds,
    load_seconds,
    offload_seconds,
)
from rlhf_flow.planning.seconds.resharding import reshard_seconds
from rlhf_flow.planning.seconds.training import train_seconds


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

    def seconds(self, planned: CallPlan) -> CallSeconds:
        """One run of a call of the step, alone on its ranks; nothing beside them."""
        if planned.mesh is None:
            return CallSeconds()
        if planned.kind in TRANSITIONS:
            return in_turn([CallSeconds(transfer=DISPATCH_SECONDS), self._transition(planned)])
        call = self.graph.call(planned.call)
        return in_turn([self._columns(call, planned.mesh), self._work(call, planned)])

    def _work(self, call: ModelCall, planned: CallPlan) -> CallSeconds:
        match call.kind:
            case CallKind.TRAIN:
                return self._train(call, planned.mini_batches)
            case CallKind.INFER:
                model = self._model(call.role)
                batch, links = call_batch(self.problem, call), self._links(model)
                return infer_seconds(model, batch, _layers(model, links), links)
            case CallKind.GENERATE:
                return self._generate(call)
            case CallKind.COPY:
                assert isinstance(call.options, CopyOptions)
                model = self._model(call.role)
                source = self._model(call.options.source)
                return copy_seconds(source, model, self._links(model))
            case _:
                return CallSeconds()

    def _train(self, call: ModelCall, mini_batches: int) -> CallSeconds:
        assert isinstance(call.options, TrainOptions)
        model = self._model(call.role)
        links = self._links(model)
        layers, epochs = _layers(model, links), call.options.loss.updates(1)
        batch = call_batch(self.problem, call)
        own = train_seconds(model, batch, layers, links, mini_batches, epochs)
        if not call.options.auxiliary:
            return own
        others = pretraining_batch(self.problem.workload)
        beside = train_seconds(model, others, layers, links, mini_batches, epochs)
        beside = replace(beside, optimizer=0.0).times(len(call.options.auxiliary))
        return in_turn([own, beside])

    def _generate(self, call: ModelCall) -> CallSeconds:
        model = self._model(call.role)
        links, batch = self._links(model), call_batch(self.problem, call)
        generation = self.plan.generation(model.role)
        assert generation is not None
        return generate_seconds(
            planned_load(self.problem, model, generation),
            generation_call(self.problem, call),
            generation.mesh,
            generation.kv_cache_bytes,
            batch.prompt,
            batch.response,
            _layers(model, links),
            links,
        )

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
            case _:
                return CallSeconds()

    def _columns(self, call: ModelCall, mesh: Mesh) -> CallSeconds:
        crosses = any(
            self._nodes(source.mesh) - self._nodes(mesh)
            for edge in self.graph.data_edges
            if edge.target == call.id
            and (source := self.plan.call(GraphName.STEP, edge.source)) is not None
        )
        return columns_seconds(
            call_batch(self.problem, call),
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


def _layers(model: RoleModel, links: Links) -> LayerSeconds:
    return analytic_layers(links.hardware, model.shape, model.precision)
