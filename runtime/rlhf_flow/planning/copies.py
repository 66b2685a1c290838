"""Roles that take over another role's weights: where both must be, and of which shape."""

from __future__ import annotations

from collections.abc import Mapping

from rlhf_api.calls import CallKind
from rlhf_api.plan import GraphName, Mesh
from rlhf_flow.errors import NotOffered
from rlhf_flow.graph import Graph
from rlhf_flow.planning.placement import describe_devices
from rlhf_flow.planning.shapes import DecoderShape


def check_copies(
    graphs: Mapping[GraphName, Graph],
    meshes: Mapping[str, Mesh],
    shapes: Mapping[str, DecoderShape],
) -> None:
    """Refuse copies between models that differ, or that are on other devices.

    Args:
        graphs: of the job.
        meshes: the ranks of each role with a model.
        shapes: of their models.

    Raises:
        NotOffered: with the call, and what to change.
    """
    calls = [call for graph in graphs.values() for call in graph.of_kind(CallKind.COPY)]
    for call in calls:
        target, source = call.role, call.copied_role
        assert target is not None and source is not None
        if shapes[target] != shapes[source]:
            raise NotOffered(
                f"{call.id} cannot copy between models of other shapes: got {shapes[source]} of "
                f"{source} and {shapes[target]} of {target}, allowed the same; let "
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
