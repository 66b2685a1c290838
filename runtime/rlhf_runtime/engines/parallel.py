"""ParallelContext: a mesh of ranks as one of them sees it.

Engines, losses and reductions get this instead of the world: a sum over a batch goes over the data
axis of the mesh that works on it, and no further.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from rlhf_api.plan import Mesh
from rlhf_runtime.dataplane.protocol import Coordinates
from rlhf_runtime.engines.world import World

DATA, PIPELINE, TENSOR = "data", "pipeline", "tensor"
"""The axes of a mesh, as torch's device meshes name them here."""


@dataclass(frozen=True)
class ParallelContext:
    """A rank's place in a mesh, and the groups that it shares with others there."""

    at: Coordinates
    device: torch.device
    device_mesh: DeviceMesh
    """The mesh's groups by axis; the data axis alone where the others have one rank."""
    group: dist.ProcessGroup
    """All ranks of the mesh."""
    timeout: timedelta
    """Longest wait for other ranks in a collective."""
    ends_group: dist.ProcessGroup | None = None
    """The first and the last of this rank's stages, where there are others between them; None on
    those."""

    @property
    def rank(self) -> int:
        """Number within the mesh, from 0."""
        return self.at.rank

    @property
    def size(self) -> int:
        """Ranks in the mesh."""
        return self.at.num_ranks

    @property
    def data_size(self) -> int:
        """Ranks that share a batch: along the data axis."""
        return self.at.data_size

    @property
    def is_first(self) -> bool:
        """Whether it is the mesh's first rank, which reads and writes files for all."""
        return self.at.rank == 0

    @property
    def data_groups(self) -> DeviceMesh:
        """The data axis, over which FSDP shards."""
        return self.device_mesh if self.device_mesh.ndim == 1 else self.device_mesh[DATA]

    @property
    def is_first_stage(self) -> bool:
        """Whether it has the first layers, which tokens enter."""
        return self.at.pipeline == 0

    @property
    def is_last_stage(self) -> bool:
        """Whether it has the last layers, whose outputs a loss sees."""
        return self.at.pipeline == self.at.pipeline_size - 1

    @property
    def data_group(self) -> dist.ProcessGroup:
        """The ranks that hold the same weights and other rows."""
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
        """This rank alone. Made without the others when it is first asked for."""
        made: dist.ProcessGroup = dist.new_group(
            [dist.get_rank()], timeout=self.timeout, use_local_synchronization=True
        )
        return made

    def _group_along(self, axis: str) -> dist.ProcessGroup:
        if self.device_mesh.ndim == 1:
            return self.own_group
        return self.device_mesh.get_group(axis)

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        """The sum over the data axis of a small host tensor, equal on all ranks.

        Ranks along the other axes hold the same rows: they would be counted twice.
        """
        return self._reduced(values, dist.ReduceOp.SUM)

    def max(self, values: torch.Tensor) -> torch.Tensor:
        """The maximum over the data axis of a small host tensor, equal on all ranks."""
        return self._reduced(values, dist.ReduceOp.MAX)

    def _reduced(self, values: torch.Tensor, how: dist.ReduceOp.RedOpType) -> torch.Tensor:
        if self.data_size > 1:
            values = values.clone()
            dist.all_reduce(values, op=how, group=self.data_group)
        return values


def make_contexts(meshes: Iterable[Mesh], world: World) -> Mapping[Mesh, ParallelContext]:
    """The contexts of all meshes that a rank is in. Collective: every rank of the pool makes the
    groups of every mesh, in the same order.

    Args:
        meshes: of the pool, the same on all ranks.
        world: the pool's ranks.
    """
    contexts = {}
    for mesh in dict.fromkeys(meshes):
        group = world.make_group(mesh.ranks)
        groups, ends = _make_groups(mesh, world, group), _make_ends(mesh, world)
        if groups is not None:
            at = Coordinates.in_mesh(world.rank, mesh)
            contexts[mesh] = ParallelContext(at, world.device, groups, group, world.timeout, ends)
    return contexts


def _make_ends(mesh: Mesh, world: World) -> dist.ProcessGroup | None:
    """The pair of a first and a last stage that a rank is in, where there are stages between."""
    if mesh.pipeline <= 2:
        return None
    cut = torch.tensor(mesh.tensor_groups).reshape(mesh.data, mesh.pipeline, mesh.tensor)
    pairs = cut[:, [0, -1]].movedim(1, -1).flatten(0, -2).tolist()
    made = [(pair, world.make_group(pair)) for pair in pairs]
    return next((each for pair, each in made if world.rank in pair), None)


def _make_groups(mesh: Mesh, world: World, group: dist.ProcessGroup) -> DeviceMesh | None:
    """A mesh's groups by axis; None on ranks that are not in it."""
    device = world.device.type
    is_member = world.rank in mesh.ranks
    if mesh.num_devices == mesh.data:
        return DeviceMesh.from_group(group, device, mesh_dim_names=(DATA,)) if is_member else None
    cut = torch.tensor(mesh.tensor_groups).reshape(mesh.data, mesh.pipeline, mesh.tensor)
    lines = [cut.movedim(axis, -1).flatten(0, -2).tolist() for axis in range(cut.ndim)]
    made = [[(line, world.make_group(line)) for line in axis] for axis in lines]
    if not is_member:
        return None
    own = [next(each for line, each in axis if world.rank in line) for axis in made]
    return DeviceMesh.from_group(own, device, cut, mesh_dim_names=(DATA, PIPELINE, TENSOR))
