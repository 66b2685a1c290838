"""The calls of a plan: those of the graphs, and transitions between them."""

from __future__ import annotations

from dataclasses import dataclass

from rlhf_api.calls import CallKind
from rlhf_api.mesh import Mesh
from rlhf_api.plan import CallPlan
from rlhf_flow.step.calls import ModelCall
from rlhf_flow.trace.graph import Graph
from rlhf_planner.cost.batches import mini_batches
from rlhf_planner.memory.offloading import offload_depths, with_offloading
from rlhf_planner.placement.strategy import JobStrategy
from rlhf_planner.placement.transitions import with_transitions
from rlhf_planner.problem.problem import PlanningProblem


@dataclass(frozen=True)
class CallMeshes:
    """The ranks of calls."""

    strategy: JobStrategy
    policy: str
    """The role on whose ranks numerics without a model run."""

    def of(self, call: ModelCall) -> Mesh | None:
        """The mesh of a call; None if no rank runs it."""
        match call.kind:
            case CallKind.SCORE | CallKind.SAVE:
                return None
            case CallKind.GENERATE | CallKind.RESHARD | CallKind.RELEASE:
                assert call.role is not None
                return self.strategy.engines[call.role].mesh
            case _:
                # Numerics without a model run on the policy's ranks, as it trains on their results.
                return self.strategy.roles[call.role or self.policy].mesh

    def source_of(self, call: ModelCall) -> Mesh | None:
        """The ranks that send weights in a call; None if it brings none."""
        reshards = call.kind is CallKind.RESHARD
        return self.strategy.roles[str(call.role)].mesh if reshards else None

    def share_ranks(self, one: ModelCall, other: ModelCall) -> bool:
        """True if two calls of a step share ranks."""
        return _overlap(self.of(one), self.of(other))

    def needs_ranks_of(self, call: ModelCall, role: str) -> bool:
        """True if a call runs on ranks that hold a role's model."""
        model_ranks = self.strategy.roles[role].mesh
        return any(_overlap(model_ranks, used) for used in (self.of(call), self.source_of(call)))


def call_plans(problem: PlanningProblem, strategy: JobStrategy) -> tuple[CallPlan, ...]:
    """Every call of every graph, in program order.

    Args:
        problem: the planning problem.
        strategy: complete.
    """
    meshes = CallMeshes(strategy, problem.policy)
    releases = {role for role, engine in strategy.engines.items() if engine.release}
    offloaded = offload_depths(strategy.roles)

    def completed(graph: Graph) -> list[ModelCall]:
        calls = with_transitions(graph.calls, releases, meshes.share_ranks)
        return with_offloading(calls, offloaded, meshes.needs_ranks_of)

    return tuple(
        CallPlan(
            graph=name,
            call=call.id,
            role=call.role,
            method=call.method,
            kind=call.kind,
            mesh=meshes.of(call),
            source_mesh=meshes.source_of(call),
            reads=call.reads,
            writes=call.writes,
            mini_batches=mini_batches(problem, call),
            expected_count=graph.expected_count(call.id),
        )
        for name, graph in problem.graphs.items()
        for call in completed(graph)
    )


def _overlap(one: Mesh | None, other: Mesh | None) -> bool:
    return one is not None and other is not None and one.overlaps(other)
