"""Meshes: the ranks that compute a call, and how they split its work."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from rlhf_api.base import Contract, Count, Name


class Mesh(Contract):
    """Consecutive ranks of a pool, and the split of a call's work over them.

    Neighbouring ranks form tensor groups, then pipeline stages, then replicas. With a tensor stride
    of s, s replicas are interleaved: data 2, tensor 2 and stride 2 give the tensor groups {0,2} and
    {1,3}.
    """

    pool: Name
    """The pool."""
    first_rank: Annotated[int, Field(ge=0)] = 0
    """Its first rank within the pool."""
    data: Count
    """Number of data-parallel replicas; under FSDP number of shards."""
    tensor: Count = 1
    """Number of ranks that split each layer."""
    pipeline: Count = 1
    """Number of pipeline stages that split the layers."""
    tensor_stride: Count = 1
    """Distance between neighbouring ranks of a tensor group."""

    @model_validator(mode="after")
    def _check_stride(self) -> Mesh:
        if self.tensor_stride > 1 and (self.pipeline > 1 or self.data % self.tensor_stride):
            raise ValueError(
                f"a tensor stride of {self.tensor_stride} does not divide the mesh: got data "
                f"{self.data} and pipeline {self.pipeline}, allowed a multiple of the stride and "
                "1; plan the job again"
            )
        return self

    @property
    def num_devices(self) -> int:
        """Number of devices in the mesh."""
        return self.data * self.tensor * self.pipeline

    @property
    def ranks(self) -> range:
        """Its ranks within the pool."""
        return range(self.first_rank, self.first_rank + self.num_devices)

    def overlaps(self, other: Mesh) -> bool:
        """True if both meshes share a device."""
        end = min(self.ranks.stop, other.ranks.stop)
        return self.pool == other.pool and max(self.first_rank, other.first_rank) < end

    def rank_at(self, data: int, pipeline: int, tensor: int) -> int:
        """The rank at coordinates of the mesh, numbered within the pool."""
        # Order of ranks, slowest first: block of replicas, stage, tensor index, replica within the
        # block.
        block, offset = divmod(data, self.tensor_stride)
        inner = (block * self.pipeline + pipeline) * self.tensor + tensor
        return self.first_rank + inner * self.tensor_stride + offset

    def tensor_index(self, rank: int) -> int:
        """Index of a rank (numbered within the pool) in its tensor group."""
        return (rank - self.first_rank) % (self.tensor * self.tensor_stride) // self.tensor_stride

    @property
    def tensor_groups(self) -> tuple[tuple[int, ...], ...]:
        """Ranks of each tensor group, ascending; groups in order of replica, then stage."""
        return tuple(
            tuple(self.rank_at(data, pipeline, tensor) for tensor in range(self.tensor))
            for data in range(self.data)
            for pipeline in range(self.pipeline)
        )


def union_ranks(one: Mesh, other: Mesh) -> tuple[int, ...]:
    """Ranks of either mesh, ascending. Both are in one pool."""
    return tuple(sorted({*one.ranks, *other.ranks}))
