"""What a plan takes of each node, and whether a cluster has it. Pure."""

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
    """The node of every rank."""
    per_node = pool.devices_per_node
    return [Node(pool.name, rank // per_node) for rank in range(pool.num_devices)]


def reward_hosts(plan: Plan) -> dict[str, Node]:
    """Names of the hosts that score, with their nodes: one for each of the policy's pool."""
    pool = plan.policy_pool
    nodes = [Node(pool.name, number) for number in range(pool.nodes)]
    return {"reward" if pool.nodes == 1 else f"reward {node.number}": node for node in nodes}


def node_bundles(pool: Pool) -> list[dict[str, float]]:
    """What the workers of a pool take, in Ray's words: one bundle for each node.

    Ranks are numbered along the nodes, so that neighbours share one. Each node has room for a host
    of rewards, and the first for that of the data: they are with the policy's ranks. In a cluster,
    the head has no place for anybody.
    """
    devices = float(pool.devices_per_node)
    bundle = {"CPU": devices + 1} | ({"GPU": devices} if pool.device is Device.GPU else {})
    return [bundle | {"CPU": devices + NUM_HOSTS}, *([bundle] * (pool.nodes - 1))]


def cluster_bundles(pool: Pool) -> list[dict[str, float]]:
    """The same in a cluster, whose nodes say to which pool they belong."""
    return [bundle | {pool_resource(pool.name): 1.0} for bundle in node_bundles(pool)]


def missing_nodes(pool: Pool, nodes: Sequence[Mapping[str, Any]]) -> str:
    """What a cluster lacks for a pool, in a line; empty: nothing.

    Args:
        pool: the plan's.
        nodes: all that Ray knows of, with `Alive` and `Resources` (`ray.nodes()`).
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
