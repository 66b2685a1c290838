"""Resources of each node that a plan uses, and a check whether a cluster has them. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from rlhf_api.on_cluster import NUM_HOSTS, pool_resource
from rlhf_api.plan import Plan, Pool
from rlhf_api.spec.resources import Device


class Node(NamedTuple):
    """A node of a pool."""

    pool: str
    number: int


def rank_nodes(pool: Pool) -> list[Node]:
    """Return the node of every rank."""
    per_node = pool.devices_per_node
    return [Node(pool.name, rank // per_node) for rank in range(pool.num_devices)]


def reward_hosts(plan: Plan) -> dict[str, Node]:
    """Return the reward hosts by name, with their nodes: one per node of the policy's pool."""
    pool = plan.policy_pool
    nodes = [Node(pool.name, number) for number in range(pool.nodes)]
    return {"reward" if pool.nodes == 1 else f"reward {node.number}": node for node in nodes}


def environment_hosts(plan: Plan) -> dict[str, Node]:
    """Return the environment hosts by name, with their nodes: one per node of a pool that
    generates."""
    pools = dict.fromkeys(
        generation.mesh.pool
        for role in plan.roles
        if (generation := plan.generation(role.role)) is not None
    )
    nodes = [Node(name, number) for name in pools for number in range(plan.pool(name).nodes)]
    if len(nodes) == 1:
        return {"environment": nodes[0]}
    return {f"environment {number}": node for number, node in enumerate(nodes)}


def node_bundles(pool: Pool) -> list[dict[str, float]]:
    """Return Ray's resource bundles for the workers of a pool, one per node."""
    devices = float(pool.devices_per_node)
    # Ranks are numbered along the nodes, so that neighbours share one. Each node has a CPU for a
    # reward host, and the first one for the data host. In a cluster, the head takes no workers.
    bundle = {"CPU": devices + 1} | ({"GPU": devices} if pool.device is Device.GPU else {})
    return [bundle | {"CPU": devices + NUM_HOSTS}, *([bundle] * (pool.nodes - 1))]


def cluster_bundles(pool: Pool) -> list[dict[str, float]]:
    """Return the same bundles for a cluster, whose nodes have their pool as a resource."""
    return [bundle | {pool_resource(pool.name): 1.0} for bundle in node_bundles(pool)]


def missing_nodes(pool: Pool, nodes: Sequence[Mapping[str, Any]]) -> str:
    """Describe the nodes that a cluster lacks for a pool, in a line; empty: none.

    Args:
        pool: of the plan.
        nodes: all nodes of Ray, with `Alive` and `Resources` (`ray.nodes()`).
    """
    first, *_ = cluster_bundles(pool)
    living = [node["Resources"] for node in nodes if node["Alive"]]
    living = [offered for offered in living if pool_resource(pool.name) in offered]
    fitting = [resources for resources in living if _covers(resources, first)]
    if len(fitting) >= pool.nodes:
        return ""
    others = [_resources_text(offered) for offered in living if any(map(offered.get, first))]
    others = [] if fitting else others  # too small, all of them
    return (
        f"{len(fitting)} of {pool.nodes} nodes with {_resources_text(first)} are there"
        + (f", besides {len(others)} with {'; '.join(sorted(set(others)))}" if others else "")
        + f"; missing {pool.nodes - len(fitting)}"
    )


def _covers(resources: Mapping[str, float], needed: Mapping[str, float]) -> bool:
    return all(resources.get(name, 0.0) >= amount for name, amount in needed.items())


def _resources_text(resources: Mapping[str, float]) -> str:
    return " and ".join(f"{resources.get(name, 0.0):g} {name}" for name in ("CPU", "GPU"))
