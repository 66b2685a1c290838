"""Times of each call of a planned step.

    Train, Infer, Generate         see train_and_infer.py and generation.py
    Reshard, Load, Offload, Copy   see transfers.py
    Release, Compute               what every call takes: its dispatch, and the columns that it
        reads
    Finish                         the end of a Generate that few engines finish, see generation.py;
                                   the Generate is then shorter

A call that begins before the last response has ended is two Infer calls, on its two parts of the
rows. Work off the ranks, of verifiers and the driver, takes no time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from rlhf_api.calls import TRANSITIONS, CallKind
from rlhf_api.mesh import Mesh
from rlhf_api.plan import CallPlan, GenerationPlan, GraphName, Plan
from rlhf_flow.step.calls import CopyOptions, ModelCall, TrainOptions
from rlhf_flow.trace.graph import Graph
from rlhf_planner.cost.batches import (
    call_batch,
    generation_call,
    num_token_columns,
    pretraining_batch,
    split_batch,
)
from rlhf_planner.cost.collectives import Links
from rlhf_planner.cost.fusion import Fusion, fusion_of
from rlhf_planner.cost.generation import SplitGeneration, generate_seconds
from rlhf_planner.cost.layers import LayerSeconds
from rlhf_planner.cost.measured_layers import layers_of
from rlhf_planner.cost.micro_batches import Batch
from rlhf_planner.cost.seconds import CallSeconds, in_turn
from rlhf_planner.cost.train_and_infer import infer_seconds, train_seconds
from rlhf_planner.cost.transfers import (
    DISPATCH_SECONDS,
    columns_seconds,
    copy_seconds,
    load_seconds,
    offload_seconds,
    reshard_seconds,
)
from rlhf_planner.memory.generation import GenerationLoad
from rlhf_planner.memory.items import RoleModel
from rlhf_planner.memory.roles import role_model
from rlhf_planner.problem.problem import PlanningProblem


def models_of_plan(problem: PlanningProblem, plan: Plan) -> dict[str, RoleModel]:
    """Every role with a model, on the ranks and with the settings of a plan."""
    return {
        role.role: role_model(
            problem,
            problem.models[role.role],
            role.mesh,
            role.micro_batch_tokens,
            role.recomputes,
        )
        for role in plan.roles
        if role.mesh is not None and role.micro_batch_tokens is not None
    }


def load_of_plan(
    problem: PlanningProblem, model: RoleModel, generation: GenerationPlan
) -> GenerationLoad:
    """The load on a role's engines in a plan.

    Args:
        problem: the planning problem.
        model: the role.
        generation: its engines.
    """
    is_elsewhere = generation.mesh.ranks != model.mesh.ranks
    return GenerationLoad(
        shape=model.shape,
        mesh=model.mesh,
        device=model.device,
        number_bytes=model.compute_bytes,
        max_prompt_tokens=problem.workload.max_prompt_tokens,
        max_response_tokens=problem.workload.max_response_tokens,
        max_concurrent_sequences=generation.max_concurrent_sequences,
        engine=model.engine,
        generation_mesh=generation.mesh if is_elsewhere else None,
    )


def train_call_seconds(
    problem: PlanningProblem, call: ModelCall, model: RoleModel, links: Links, mini_batches: int
) -> CallSeconds:
    """Seconds of a call that trains.

    Args:
        problem: the planning problem.
        call: of its step.
        model: the role.
        links: of its pool.
        mini_batches: parts of a batch, each for an update.
    """
    assert isinstance(call.options, TrainOptions)
    # With one mini-batch per epoch the updates are the epochs.
    layers, epochs = _layers(model, links), call.options.loss.updates(1)
    own = train_seconds(model, call_batch(problem, call), layers, links, mini_batches, epochs)
    if not call.options.auxiliary:
        return own
    others = pretraining_batch(problem.workload)
    # Batches of auxiliary losses are further micro-batches of the same updates, so they add no
    # optimizer step.
    auxiliary = train_seconds(model, others, layers, links, mini_batches, epochs)
    auxiliary = replace(auxiliary, optimizer=0.0).times(len(call.options.auxiliary))
    return in_turn([own, auxiliary])


def infer_call_seconds(
    problem: PlanningProblem, call: ModelCall, model: RoleModel, links: Links
) -> CallSeconds:
    """Seconds of a call that runs a role forward; arguments as for `train_call_seconds`."""
    return infer_batch_seconds(call_batch(problem, call), model, links)


def infer_batch_seconds(batch: Batch, model: RoleModel, links: Links) -> CallSeconds:
    """Seconds of a forward call over some rows."""
    return infer_seconds(model, batch, _layers(model, links), links)


def generate_call_seconds(
    problem: PlanningProblem,
    call: ModelCall,
    model: RoleModel,
    load: GenerationLoad,
    engines: tuple[Mesh, int],
    links: Links,
) -> CallSeconds:
    """Seconds of a call that generates.

    Args:
        problem: the planning problem.
        call: of its step.
        model: the role.
        load: on its engines.
        engines: their ranks, and bytes of their caches on each device.
        links: of their pool.
    """
    batch, (mesh, kv_cache_bytes) = call_batch(problem, call), engines
    return generate_seconds(
        load,
        generation_call(problem, call),
        mesh,
        kv_cache_bytes,
        batch.prompt,
        batch.response,
        _layers(model, links),
        links,
    )


def split_generation(
    problem: PlanningProblem,
    call: ModelCall,
    model: RoleModel,
    load: GenerationLoad,
    engines: tuple[Mesh, int],
    links: Links,
    fusion: Fusion,
) -> SplitGeneration:
    """A call that generates, of which few engines finish the last responses.

    Args:
        problem: the planning problem.
        call: of its step.
        model: the role.
        load: on its engines.
        engines: their ranks, and bytes of their caches on each device.
        links: of their pool.
        fusion: the finishing engines and the number of responses.
    """
    batch, (mesh, kv_cache_bytes) = call_batch(problem, call), engines
    return SplitGeneration(
        load=load,
        call=generation_call(problem, call),
        engines=mesh,
        finish=fusion.mesh,
        threshold_rows=fusion.threshold_rows,
        kv_cache_bytes=kv_cache_bytes,
        prompt=batch.prompt,
        response=batch.response,
        layers=_layers(model, links),
        links=links,
    )


def _layers(model: RoleModel, links: Links) -> LayerSeconds:
    return layers_of(links.hardware, model.shape, model.precision)


@dataclass(frozen=True)
class CallCosts:
    """Times of the calls of a plan's step."""

    problem: PlanningProblem
    plan: Plan
    models: Mapping[str, RoleModel]
    """Every role with a model."""
    links: Mapping[str, Links]
    """Links of every pool."""

    @property
    def graph(self) -> Graph:
        """The graph of the step."""
        return self.problem.graphs[GraphName.STEP]

    def parts(self, planned: CallPlan) -> tuple[CallSeconds, ...]:
        """Seconds of one run of a call, alone on its ranks; two parts if it begins with responses
        that ended early. Empty for calls off the ranks."""
        # Work off the ranks counts as 0: user code takes an unknown time, and other calls run
        # meanwhile.
        if planned.mesh is None:
            return (CallSeconds(),)
        if planned.kind in TRANSITIONS:
            order = CallSeconds(transfer=DISPATCH_SECONDS)
            # Transitions read no columns.
            return (in_turn([order, self._transition(planned)]),)
        call = self.graph.call(planned.call)
        batch = call_batch(self.problem, call)
        if self.fusion is None or planned.call not in self.fusion.calls:
            return (in_turn([self._columns(call, planned.mesh, batch), self._work(call, planned)]),)
        assert self._split is not None
        return tuple(
            self._on_rows(call, planned.mesh, rows) for rows in split_batch(batch, self._split)
        )

    def _on_rows(self, call: ModelCall, mesh: Mesh, batch: Batch | None) -> CallSeconds:
        """Seconds of a forward call over some rows; without rows, its dispatch."""
        if batch is None:
            return CallSeconds(transfer=DISPATCH_SECONDS)
        model = self._model(call.role)
        inferred = infer_batch_seconds(batch, model, self._links(model))
        return in_turn([self._columns(call, mesh, batch), inferred])

    @cached_property
    def fusion(self) -> Fusion | None:
        """The overlap with the end of generation."""
        return fusion_of(self.plan)

    @cached_property
    def _split(self) -> SplitGeneration | None:
        """The call whose last responses are finished separately."""
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
        """Role, load, engines and links of a call that generates."""
        model = self._model(call.role)
        generation = self.plan.generation(model.role)
        assert generation is not None
        load = load_of_plan(self.problem, model, generation)
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
                trained = load_of_plan(self.problem, model, generation).trained
                return reshard_seconds(trained, generation.mesh, links)
            case CallKind.FINISH:
                assert self._split is not None
                return self._split.finish_seconds
            case _:
                return CallSeconds()

    def _columns(self, call: ModelCall, mesh: Mesh, batch: Batch) -> CallSeconds:
        # Columns travel over the network if a source has ranks on a node without ranks of the call.
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
