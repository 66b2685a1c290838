"""The calls of a plan: those of the graphs, and transitions between them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rlhf_api.calls import CallKind
from rlhf_api.mesh import Mesh
from rlhf_api.plan import CallPlan
from rlhf_flow.step.calls import ModelCall, TrainOptions
from rlhf_flow.trace.graph import Graph
from rlhf_planner.memory.generation import EngineChoice
from rlhf_planner.memory.offloading import OffloadChoice, with_offloading
from rlhf_planner.placement.transitions import with_transitions
from rlhf_planner.problem.problem import PlanningProblem


@dataclass(frozen=True)
class CallMeshes:
    """The ranks of calls."""

    training: Mapping[str, Mesh]
    """The ranks that hold each role's model."""
    engines: Mapping[str, EngineChoice]
    """The engines of each role that generates."""
    policy: str
    """The role on whose ranks numerics without a model run."""

    def of(self, call: ModelCall) -> Mesh | None:
        """The mesh of a call; None if no rank runs it."""
        match call.kind:
            case CallKind.SCORE | CallKind.SAVE:
                return None
            case CallKind.GENERATE | CallKind.RESHARD | CallKind.RELEASE:
                assert call.role is not None
                return self.engines[call.role].mesh
            case _:
                # Numerics without a model run on the policy's ranks, as it trains on their results.
                return self.training[call.role or self.policy]

    def source_of(self, call: ModelCall) -> Mesh | None:
        """The ranks that send weights in a call; None if it brings none."""
        return self.training[str(call.role)] if call.kind is CallKind.RESHARD else None

    def share_ranks(self, one: ModelCall, other: ModelCall) -> bool:
        """True if two calls of a step share ranks."""
        return _overlap(self.of(one), self.of(other))

    def needs_ranks_of(self, call: ModelCall, role: str) -> bool:
        """True if a call runs on ranks that hold a role's model."""
        model_ranks = self.training[role]
        return any(_overlap(model_ranks, used) for used in (self.of(call), self.source_of(call)))


def call_plans(
    problem: PlanningProblem, meshes: CallMeshes, offload: OffloadChoice
) -> tuple[CallPlan, ...]:
    """Every call of every graph, in program order.

    Args:
        problem: the planning problem.
        meshes: the ranks of calls.
        offload: roles that are offloaded between their calls.
    """
    releases = {role for role, engine in meshes.engines.items() if engine.release}

    def completed(graph: Graph) -> list[ModelCall]:
        calls = with_transitions(graph.calls, releases, meshes.share_ranks)
        return with_offloading(calls, offload.roles, meshes.needs_ranks_of)

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


def mini_batches(problem: PlanningProblem, call: ModelCall) -> int:
    """Parts of a call's batch."""
    # A loss that makes one update even with two parts is never cut.
    if not isinstance(call.options, TrainOptions) or call.options.loss.updates(2) == 1:
        return 1
    return problem.workload.updates_per_epoch


def _overlap(one: Mesh | None, other: Mesh | None) -> bool:
    return one is not None and other is not None and one.overlaps(other)
