"""Process groups of a pool: ParallelContext for a mesh, RankGroup for any set of ranks.

Engines, losses and reductions get these instead of the world: a sum over a batch covers the data
axis of the mesh that works on it, and no other ranks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from rlhf_api.mesh import Mesh
from rlhf_runtime.dataplane.protocol import Coordinates
from rlhf_runtime.engines.world import World

DATA, PIPELINE, TENSOR = "data", "pipeline", "tensor"
"""Names of a mesh's axes in torch's device meshes."""


@dataclass(frozen=True)
class ParallelContext:
    """A rank's coordinates in a mesh, and its process groups there."""

    at: Coordinates
    device: torch.device
    device_mesh: DeviceMesh
    """The mesh's groups by axis; only the data axis if all others have one rank."""
    group: dist.ProcessGroup
    """All ranks of the mesh."""
    timeout: timedelta
    """Time-out of collectives."""
    ends_group: dist.ProcessGroup | None = None
    """The first and the last of this rank's stages; None on stages between them, and if there are
    no stages between."""

    @property
    def rank(self) -> int:
        """Number within the mesh, from 0."""
        return self.at.rank

    @property
    def size(self) -> int:
        """Number of ranks in the mesh."""
        return self.at.num_ranks

    @property
    def data_size(self) -> int:
        """Number of replicas, which share a batch."""
        return self.at.data_size

    @property
    def is_first(self) -> bool:
        """True on the mesh's first rank, which reads and writes files for all."""
        return self.at.rank == 0

    @property
    def data_groups(self) -> DeviceMesh:
        """The data axis, over which FSDP shards."""
        return self.device_mesh if self.device_mesh.ndim == 1 else self.device_mesh[DATA]

    @property
    def is_first_stage(self) -> bool:
        """True if the rank has the first layers, whose inputs are tokens."""
        return self.at.pipeline == 0

    @property
    def is_last_stage(self) -> bool:
        """True if the rank has the last layers, whose outputs are inputs of losses."""
        return self.at.pipeline == self.at.pipeline_size - 1

    @property
    def data_group(self) -> dist.ProcessGroup:
        """The ranks with the same weights and other rows."""
        return self.data_groups.get_group()

    @property
    def tensor_group(self) -> dist.ProcessGroup:
        """The ranks that share this rank's layers."""
        return self._group_along(TENSOR)

    @property
    def pipeline_group(self) -> dist.ProcessGroup:
        """The ranks that compute the same rows, stage by stage."""
        return self._group_along(PIPELINE)

    @cached_property
    def own_group(self) -> dist.ProcessGroup:
        """This rank alone. Created on first use, without the other ranks."""
        group: dist.ProcessGroup = dist.new_group(
            [dist.get_rank()], timeout=self.timeout, use_local_synchronization=True
        )
        return group

    def _group_along(self, axis: str) -> dist.ProcessGroup:
        if self.device_mesh.ndim == 1:
            return self.own_group
        return self.device_mesh.get_group(axis)

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        """The sum over the data axis of a small host tensor, equal on all ranks."""
        # Not over the other axes: their ranks have the same rows, which would count twice.
        return self._all_reduce(values, dist.ReduceOp.SUM)

    def max(self, values: torch.Tensor) -> torch.Tensor:
        """The maximum over the data axis of a small host tensor, equal on all ranks."""
        return self._all_reduce(values, dist.ReduceOp.MAX)

    def _all_reduce(self, values: torch.Tensor, operation: dist.ReduceOp.RedOpType) -> torch.Tensor:
        if self.data_size > 1:
            values = values.clone()
            dist.all_reduce(values, op=operation, group=self.data_group)
        return values


def make_contexts(meshes: Iterable[Mesh], world: World) -> Mapping[Mesh, ParallelContext]:
    """Contexts of all meshes that contain this rank. Collective over the pool.

    Args:
        meshes: of the pool, the same on all ranks.
        world: the pool's ranks.
    """
    # torch requires every rank to create every group, in the same order, members or not.
    contexts = {}
    for mesh in dict.fromkeys(meshes):
        group = world.make_group(mesh.ranks)
        groups, ends = _make_groups(mesh, world, group), _make_ends(mesh, world)
        if groups is not None:
            at = Coordinates.in_mesh(world.rank, mesh)
            contexts[mesh] = ParallelContext(at, world.device, groups, group, world.timeout, ends)
    return contexts


def _make_ends(mesh: Mesh, world: World) -> dist.ProcessGroup | None:
    """The group of this rank's first and last stage, if there are stages between."""
    if mesh.pipeline <= 2:
        return None
    cut = torch.tensor(mesh.tensor_groups).reshape(mesh.data, mesh.pipeline, mesh.tensor)
    pairs = cut[:, [0, -1]].movedim(1, -1).flatten(0, -2).tolist()
    groups = [(pair, world.make_group(pair)) for pair in pairs]
    return next((group for pair, group in groups if world.rank in pair), None)


def _make_groups(mesh: Mesh, world: World, group: dist.ProcessGroup) -> DeviceMesh | None:
    """A mesh's groups by axis; None on ranks outside of it."""
    device = world.device.type
    is_member = world.rank in mesh.ranks
    if mesh.num_devices == mesh.data:
        return DeviceMesh.from_group(group, device, mesh_dim_names=(DATA,)) if is_member else None
    cut = torch.tensor(mesh.tensor_groups).reshape(mesh.data, mesh.pipeline, mesh.tensor)
    lines = [cut.movedim(axis, -1).flatten(0, -2).tolist() for axis in range(cut.ndim)]
    groups = [[(line, world.make_group(line)) for line in axis] for axis in lines]
    if not is_member:
        return None
    own = [next(group for line, group in axis if world.rank in line) for axis in groups]
    return DeviceMesh.from_group(own, device, cut, mesh_dim_names=(DATA, PIPELINE, TENSOR))


@dataclass(frozen=True)
class RankGroup:
    """Ranks that need not be a mesh, such as all ranks that train a role or generate with it."""

    rank: int
    """This rank's number in the group, from 0."""
    size: int
    """Number of ranks."""
    group: dist.ProcessGroup
    """All of them."""

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        """The sum over the ranks of a small host tensor, equal on all of them."""
        return self._all_reduce(values, dist.ReduceOp.SUM)

    def max(self, values: torch.Tensor) -> torch.Tensor:
        """The maximum over the ranks of a small host tensor, equal on all of them."""
        return self._all_reduce(values, dist.ReduceOp.MAX)

    def _all_reduce(self, values: torch.Tensor, operation: dist.ReduceOp.RedOpType) -> torch.Tensor:
        if self.size > 1:
            values = values.clone()
            dist.all_reduce(values, op=operation, group=self.group)
        return values


def make_rank_groups(
    sets: Iterable[tuple[int, ...]], world: World
) -> Mapping[tuple[int, ...], RankGroup]:
    """Groups of all sets of ranks that contain this rank. Collective over the pool.

    Args:
        sets: ascending ranks of the pool, the same on all ranks.
        world: the pool's ranks.
    """
    groups = {}
    for ranks in dict.fromkeys(sets):
        group = world.make_group(ranks)
        if world.rank in ranks:
            groups[ranks] = RankGroup(ranks.index(world.rank), len(ranks), group)
    return groups
