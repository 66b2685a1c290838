"""Roles that take over another role's weights: where both must be, and of which shape."""

from __future__ import annotations

from collections.abc import Mapping

from rlhf_api.calls import CallKind
from rlhf_api.plan import Mesh
from rlhf_flow.errors import NotOffered
from rlhf_flow.planning.placement import describe_devices
from rlhf_flow.planning.problem import PlanningProblem


def check_copies(problem: PlanningProblem, meshes: Mapping[str, Mesh]) -> None:
    """Refuse copies between models that differ, or that are on other devices.

    Args:
        problem: what is planned.
        meshes: the ranks of each role with a model.

    Raises:
        NotOffered: with the call, and what to change.
    """
    calls = [
        call for graph in problem.graphs.values() for call in graph.calls_of_kind(CallKind.COPY)
    ]
    for call in calls:
        target, source = call.role, call.copied_role
        assert target is not None and source is not None
        one, other = problem.models[source].shape, problem.models[target].shape
        if one != other:
            raise NotOffered(
                f"{call.id} cannot copy between models of other shapes: got {one} of "
                f"{source} and {other} of {target}, allowed the same; let "
                f"models.{target}.source be {{sameAs: {source}}}"
            )
        _check_meshes(call.id, source, meshes[source], target, meshes[target])


def _check_meshes(call: str, source: str, one: Mesh, target: str, other: Mesh) -> None:
    if (one.pool, one.ranks) != (other.pool, other.ranks):
        raise NotOffered(
            f"{call} cannot copy between other devices yet: got {source} on "
            f"{describe_devices(one.ranks, one.pool)} and {target} on "
            f"{describe_devices(other.ranks, other.pool)}, allowed the same for both; put "
            "them into one group of placement.groups"
        )
