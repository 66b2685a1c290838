"""Times of each call of a planned step.

A call that begins before the last response has ended is two Infer calls, on its two parts of the
rows. Work off the ranks, of verifiers and the driver, takes no time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from rlhf_api.calls import CallKind
from rlhf_api.mesh import Mesh
from rlhf_api.plan import CallPlan, GraphName, Plan
from rlhf_flow.step.calls import CopyOptions, ModelCall
from rlhf_flow.trace.graph import Graph
from rlhf_planner.cost.batches import call_batch, split_batch
from rlhf_planner.cost.calls import CallCosts, dispatched, infer_batch_seconds, split_generation
from rlhf_planner.cost.collectives import Links
from rlhf_planner.cost.fusion import Fusion, fusion_of
from rlhf_planner.cost.generation import SplitGeneration
from rlhf_planner.cost.micro_batches import CallRows
from rlhf_planner.cost.seconds import CallSeconds, in_turn
from rlhf_planner.memory.role_model import RoleModel
from rlhf_planner.memory.roles import role_model
from rlhf_planner.placement.strategy import JobStrategy, strategy_of
from rlhf_planner.problem.problem import PlanningProblem


def models_of_plan(problem: PlanningProblem, plan: Plan) -> dict[str, RoleModel]:
    """Every role with a model, on the ranks and with the settings of a plan."""
    return _models(problem, strategy_of(plan))


def _models(problem: PlanningProblem, strategy: JobStrategy) -> dict[str, RoleModel]:
    return {role: role_model(problem, role, own) for role, own in strategy.roles.items()}


@dataclass(frozen=True)
class PlanCosts:
    """Times of the calls of a plan's step."""

    problem: PlanningProblem
    plan: Plan
    links: Mapping[str, Links]
    """Links of every pool."""

    @property
    def graph(self) -> Graph:
        """The graph of the step."""
        return self.problem.graphs[GraphName.STEP]

    @cached_property
    def _costs(self) -> CallCosts:
        return CallCosts(self.problem, self.links)

    @cached_property
    def _strategy(self) -> JobStrategy:
        return strategy_of(self.plan)

    @cached_property
    def _models(self) -> Mapping[str, RoleModel]:
        return _models(self.problem, self._strategy)

    def parts(self, planned: CallPlan) -> tuple[CallSeconds, ...]:
        """Seconds of one run of a call, alone on its ranks; two parts if it begins with responses
        that ended early. Empty for calls off the ranks."""
        # Work off the ranks counts as 0: user code takes an unknown time, and other calls run
        # meanwhile.
        if planned.mesh is None:
            return (CallSeconds(),)
        model = self._models[planned.role or self.problem.policy]
        match planned.kind:
            case CallKind.LOAD | CallKind.OFFLOAD:
                depth = self._strategy.roles[model.role].offload
                return (self._costs.move(planned.kind, model, depth),)
            case CallKind.RESHARD:
                return (self._costs.reshard(model, self._strategy.engines[model.role]),)
            case CallKind.RELEASE:
                return (self._costs.release(model, self._strategy.engines[model.role]),)
            case CallKind.FINISH:
                assert self._split is not None
                return (dispatched(self._split.finish_seconds),)
        call = self.graph.call(planned.call)
        if self.fusion is None or planned.call not in self.fusion.calls:
            return (self._whole(call, planned.mesh, model),)
        assert self._split is not None
        batches = split_batch(call_batch(self.problem, call), self._split)
        return tuple(self._on_rows(call, model, rows) for rows in batches)

    def _whole(self, call: ModelCall, mesh: Mesh, model: RoleModel) -> CallSeconds:
        """Seconds of a call over all of its rows."""
        crosses_nodes = self._crosses_nodes(call, mesh)
        if call.kind is CallKind.GENERATE:
            if self.fusion is not None and self.fusion.generate == call.id:
                assert self._split is not None
                columns = self._costs.columns(call, mesh, crosses_nodes=crosses_nodes)
                return in_turn([columns, self._split.generate_seconds])
            engines = self._strategy.engines[model.role]
            return self._costs.generate(call, model, engines, crosses_nodes=crosses_nodes)
        source = (
            self._models[call.options.source] if isinstance(call.options, CopyOptions) else None
        )
        return self._costs.on_role(call, model, crosses_nodes=crosses_nodes, source=source)

    def _on_rows(self, call: ModelCall, model: RoleModel, batch: CallRows | None) -> CallSeconds:
        """Seconds of a forward call over some rows; without rows, its dispatch."""
        if batch is None:
            return dispatched(CallSeconds())
        crosses_nodes = self._crosses_nodes(call, model.mesh)
        columns = self._costs.columns(call, model.mesh, crosses_nodes=crosses_nodes, batch=batch)
        links = self.links[model.mesh.pool]
        return in_turn([columns, infer_batch_seconds(batch, model, links)])

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
        model, engines = self._models[str(call.role)], self._strategy.engines[str(call.role)]
        links = self.links[model.mesh.pool]
        return split_generation(self.problem, call, model, engines, links, self.fusion)

    def _crosses_nodes(self, call: ModelCall, mesh: Mesh) -> bool:
        """True if columns come from ranks on a node without ranks of the call."""
        return any(
            self._nodes(source.mesh) - self._nodes(mesh)
            for edge in self.graph.data_edges
            if edge.target == call.id
            and (source := self.plan.call(GraphName.STEP, edge.source)) is not None
        )

    def _nodes(self, mesh: Mesh | None) -> set[tuple[str, int]]:
        if mesh is None:
            return set()
        per_node = self.links[mesh.pool].devices_per_node
        return {(mesh.pool, rank // per_node) for rank in mesh.ranks}
