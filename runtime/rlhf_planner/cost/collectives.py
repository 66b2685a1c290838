"""Times of collectives and messages between ranks.

For a collective over n ranks on k nodes, with a result of S bytes (ring algorithm):

    all-gather, reduce-scatter   max( (n - 1)/n S / link,  (k - 1)/k S / (n/k network) )
    all-reduce                   twice as much

The first term is the bytes that every rank receives, the second the traffic into every node. NCCL's
own model of latency is added: a constant, and a hop per step.

Source: Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in
MPICH" (2005), section 4, for the rings; NCCL, src/graph/tuning.cc, for latency.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from rlhf_api.mesh import Mesh
from rlhf_planner.cost.hardware import Hardware


class Group(NamedTuple):
    """Ranks that communicate, the same number on each of their nodes."""

    size: int
    nodes: int = 1


ALONE = Group(1)


@dataclass(frozen=True)
class Links:
    """The links of a pool's devices."""

    hardware: Hardware
    devices_per_node: int

    def group(self, first_rank: int, size: int, stride: int) -> Group:
        """A group of ranks at equal distances."""
        if size == 1:
            return ALONE
        # Ranks at least a node apart share no node.
        if stride >= self.devices_per_node:
            return Group(size, size)
        last = first_rank + (size - 1) * stride
        first_node = first_rank // self.devices_per_node
        return Group(size, last // self.devices_per_node - first_node + 1)

    def data_group(self, mesh: Mesh) -> Group:
        """The replicas, or shards, of a training mesh."""
        return self.group(mesh.first_rank, mesh.data, mesh.tensor * mesh.pipeline)

    def tensor_group(self, mesh: Mesh) -> Group:
        """The ranks that share layers."""
        return self.group(mesh.first_rank, mesh.tensor, mesh.tensor_stride)

    def stage_group(self, mesh: Mesh) -> Group:
        """The pipeline stages of a replica."""
        return self.group(mesh.first_rank, mesh.pipeline, mesh.tensor)

    def all_gather_seconds(self, num_bytes: float, group: Group) -> float:
        """Seconds until every rank, which has a part, has all of a number of bytes."""
        size, nodes = group
        if size == 1:
            return 0.0
        hardware = self.hardware
        link = hardware.link_bytes_per_second * hardware.link_efficiency
        # With one rank per node all bytes come over the network.
        seconds = (size - 1) / size * num_bytes / link if size > nodes else 0.0
        if nodes > 1:
            network = hardware.network_bytes_per_second * hardware.network_efficiency
            # Rings cross a node's border once for each of its network cards, so the shares of all
            # its ranks carry the traffic. Links and network work at the same time: the slower
            # counts.
            received = (nodes - 1) / nodes * num_bytes
            seconds = max(seconds, received / (size / nodes * network))
        return seconds + hardware.collective_seconds + self._hops(group)

    def reduce_scatter_seconds(self, num_bytes: float, group: Group) -> float:
        """Seconds until every rank, which has a number of bytes, has a part of the sum."""
        return self.all_gather_seconds(num_bytes, group)

    def all_reduce_seconds(self, num_bytes: float, group: Group) -> float:
        """Seconds until every rank, which has a number of bytes, has the sum."""
        if group.size == 1:
            return 0.0
        # A reduce-scatter, then an all-gather. One kernel does both, so its constant counts once.
        twice = 2 * self.all_gather_seconds(num_bytes, group)
        return twice - self.hardware.collective_seconds

    def send_seconds(self, num_bytes: float, *, crosses_nodes: bool) -> float:
        """Seconds of a message from one rank to another."""
        hardware = self.hardware
        if crosses_nodes:
            rate = hardware.network_bytes_per_second * hardware.network_efficiency
            hop = hardware.network_latency_seconds
        else:
            rate = hardware.link_bytes_per_second * hardware.link_efficiency
            hop = hardware.link_latency_seconds
        return num_bytes / rate + hop + hardware.collective_seconds

    def receive_seconds(self, within: float, between: float) -> float:
        """Seconds to receive bytes from the same node, then from other nodes, on every rank at
        once."""
        hardware = self.hardware
        link = hardware.link_bytes_per_second * hardware.link_efficiency
        network = hardware.network_bytes_per_second * hardware.network_efficiency
        return within / link + between / network

    def _hops(self, group: Group) -> float:
        size, nodes = group
        hardware = self.hardware
        # A ring has size - 1 hops, of which nodes - 1 are between nodes.
        within = (size - nodes) * hardware.link_latency_seconds
        return within + (nodes - 1) * hardware.network_latency_seconds
