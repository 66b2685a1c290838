"""Strategies: how each role of a job is computed, and where.

A field is None while it is open. A placement is a strategy of which only the devices are known; a
plan is built from a complete one. What the manifest fixes is in the planning problem, and every
completion of a strategy respects it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

from rlhf_api.mesh import Mesh
from rlhf_api.plan import OffloadDepth, Plan


class Cut(NamedTuple):
    """Parallelism of a model that is trained or run forward."""

    tensor: int
    """Ranks over which each layer is cut."""
    pipeline: int
    """Stages over which the layers are distributed."""

    @property
    def num_ranks(self) -> int:
        """Devices for one copy of the model."""
        return self.tensor * self.pipeline


@dataclass(frozen=True)
class RoleStrategy:
    """Strategy of a role's training and forward passes: devices, cut and use of memory."""

    devices: Mesh
    """The devices that hold its model, cut along `data` only."""
    tensor: int | None = None
    """Ranks over which each layer is cut."""
    pipeline: int | None = None
    """Stages over which the layers are distributed."""
    micro_batch_tokens: int | None = None
    """Limit of padded tokens in a micro-batch."""
    recompute: bool | None = None
    """True if activations are computed again in the backward pass."""
    offload: OffloadDepth | None = None
    """The depth to which it leaves its devices while others work there."""
    group: int | None = None
    """Index in placement.groups of the group that names the devices, if one does."""

    @property
    def cut(self) -> Cut:
        """The cut of its model; an open factor counts as 1."""
        return Cut(self.tensor or 1, self.pipeline or 1)

    @property
    def mesh(self) -> Mesh:
        """The devices with the model cut."""
        # Open strategies are asked most often, and hashing a mesh takes longer than this.
        if self.cut.num_ranks == 1:
            return self.devices
        return cut_mesh(self.devices, self.cut)

    def with_cut(self, cut: Cut) -> RoleStrategy:
        """The strategy with a cut."""
        return replace(self, tensor=cut.tensor, pipeline=cut.pipeline)


@dataclass(frozen=True)
class EngineStrategy:
    """Strategy of a role's generation: devices, size of its engines and use of memory."""

    devices: Mesh
    """The devices that generate, as a mesh along `data` only."""
    tensor: int | None = None
    """Ranks of an engine."""
    kv_cache_bytes: int | None = None
    """Cache on each device."""
    release: bool | None = None
    """True if weights and cache are released while no call generates."""
    packs_weights: bool | None = None
    """True if engines compute with packed copies of their weights."""
    tensor_stride: int | None = None
    """Distance between neighbouring ranks of an engine. Open until the plan is built."""
    group: int | None = None
    """Index in placement.groups of the group that names the devices, if one does."""

    @property
    def mesh(self) -> Mesh:
        """Ranks of the engines; an open size or stride counts as 1."""
        if self.tensor in (None, 1):
            return self.devices
        return cut_mesh(self.devices, Cut(self.tensor or 1, 1), self.tensor_stride or 1)


@dataclass(frozen=True)
class JobStrategy:
    """The strategies of a job."""

    roles: Mapping[str, RoleStrategy]
    """Every role with a model."""
    engines: Mapping[str, EngineStrategy]
    """Every role that generates."""

    @property
    def devices(self) -> list[Mesh]:
        """The devices of all roles and of all engines."""
        return [
            *(strategy.devices for strategy in self.roles.values()),
            *(engines.devices for engines in self.engines.values()),
        ]


@lru_cache(maxsize=16384)
def cut_mesh(devices: Mesh, cut: Cut, tensor_stride: int = 1) -> Mesh:
    """Cut a mesh along `data` only into tensor ranks and stages."""
    if cut.num_ranks == 1:
        return devices
    return Mesh(
        pool=devices.pool,
        first_rank=devices.first_rank,
        data=devices.num_devices // cut.num_ranks,
        tensor=cut.tensor,
        pipeline=cut.pipeline,
        tensor_stride=tensor_stride,
    )


def strategy_of(plan: Plan) -> JobStrategy:
    """The strategy of a plan."""
    return JobStrategy(
        {
            role.role: RoleStrategy(
                _devices(role.mesh),
                role.mesh.tensor,
                role.mesh.pipeline,
                role.micro_batch_tokens,
                role.recomputes,
                role.offload,
            )
            for role in plan.roles
            if role.mesh is not None
        },
        {
            engines.role: EngineStrategy(
                _devices(engines.mesh),
                engines.mesh.tensor,
                engines.kv_cache_bytes,
                engines.release_during_training,
                engines.packs_weights,
                engines.mesh.tensor_stride,
            )
            for engines in plan.generations
        },
    )


def _devices(mesh: Mesh) -> Mesh:
    if mesh.data == mesh.num_devices:
        return mesh
    return Mesh(pool=mesh.pool, first_rank=mesh.first_rank, data=mesh.num_devices)
