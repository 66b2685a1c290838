"""What a step asks for and this version does not have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations

from rlhf_api.plan import GraphName, Mesh
from rlhf_api.spec.resources import Device
from rlhf_flow.errors import NotOffered
from rlhf_flow.graph import Graph
from rlhf_flow.job_graphs import job_roles
from rlhf_flow.planning.inventory import DeviceInventory
from rlhf_flow.planning.placement import describe_devices


def check_offered(
    graphs: Mapping[GraphName, Graph],
    pools: Sequence[DeviceInventory],
    meshes: Mapping[str, Mesh],
) -> None:
    """Refuse steps that no runtime runs yet.

    Args:
        graphs: of the job.
        pools: all devices.
        meshes: the ranks of each role with a model.

    Raises:
        NotOffered: with the call, and what to write instead.
    """
    generating = [name for name, role in job_roles(graphs).items() if role.generates]
    by_name = {pool.pool: pool for pool in pools}
    for first, second in combinations(generating, 2):
        _check_engines(first, second, meshes, by_name[meshes[first].pool])


def _check_engines(
    first: str, second: str, meshes: Mapping[str, Mesh], pool: DeviceInventory
) -> None:
    """Refuse two roles whose engines would share processes that cannot have both.

    vLLM keeps one set of groups in a process, which a second engine takes over: it has to be on the
    same ranks.
    """
    one, other = meshes[first], meshes[second]
    if one.pool != other.pool or not set(one.ranks) & set(other.ranks):
        return
    if pool.device is Device.GPU:
        raise NotOffered(
            "several roles that generate on the same GPUs are not offered yet, where an engine "
            f"that gives its memory back is alone in its process: got {first}, {second}, allowed "
            "one; generate with one of them, or place them apart with placement.groups"
        )
    if one.ranks != other.ranks:
        raise NotOffered(
            "roles that generate on some of the same devices are not offered yet: got "
            f"{first} on {describe_devices(one.ranks, one.pool)} and {second} on "
            f"{describe_devices(other.ranks, other.pool)}, allowed the same devices for both, or "
            "none in common; change placement.groups"
        )
