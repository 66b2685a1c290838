"""The transfer rule: the rows that a rank gets, and the ranks whose outputs count.

`distribute` maps a rank's coordinates to its slice of the rows; `collect` says whether its output
is kept. HybridFlow's protocols are instances; so are pairs of users (`user_protocol`). Source:
HybridFlow, table 3.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rlhf_api.mesh import Mesh, union_ranks
from rlhf_runtime.dataplane.partition import Slice


@dataclass(frozen=True)
class Coordinates:
    """Coordinates of a rank in the mesh of a call."""

    data: int
    data_size: int
    tensor: int = 0
    tensor_size: int = 1
    pipeline: int = 0
    pipeline_size: int = 1
    tensor_stride: int = 1
    """Distance between the ranks of a tensor group."""

    @staticmethod
    def in_mesh(rank: int, mesh: Mesh) -> Coordinates:
        """Return a rank's coordinates in a mesh.

        Args:
            rank: rank within the pool; one of the mesh's.
            mesh: of the call.
        """
        # Tensor ranks are consecutive or a stride apart; then come pipeline stages, then replicas.
        inner, offset = divmod(mesh.ranks.index(rank), mesh.tensor_stride)
        stage, tensor = divmod(inner, mesh.tensor)
        block, pipeline = divmod(stage, mesh.pipeline)
        return Coordinates(
            data=block * mesh.tensor_stride + offset,
            data_size=mesh.data,
            tensor=tensor,
            tensor_size=mesh.tensor,
            pipeline=pipeline,
            pipeline_size=mesh.pipeline,
            tensor_stride=mesh.tensor_stride,
        )

    @staticmethod
    def in_call(rank: int, mesh: Mesh, source: Mesh | None) -> Coordinates:
        """Return a rank's coordinates in a call.

        Args:
            rank: rank within the pool; one of either mesh's.
            mesh: of the call.
            source: the mesh that weights come from; None: the call transfers no weights.
        """
        if source is None:
            return Coordinates.in_mesh(rank, mesh)
        # Two meshes have no common axes: each of their ranks is a slice of its own.
        ranks = union_ranks(mesh, source)
        return Coordinates(ranks.index(rank), len(ranks))

    @property
    def rank(self) -> int:
        """Rank within the mesh, from 0."""
        block, offset = divmod(self.data, self.tensor_stride)
        inner = (block * self.pipeline_size + self.pipeline) * self.tensor_size + self.tensor
        return inner * self.tensor_stride + offset

    @property
    def num_ranks(self) -> int:
        """Number of ranks in the mesh."""
        return self.data_size * self.pipeline_size * self.tensor_size


@dataclass(frozen=True)
class Protocol:
    """A pair (distribute, collect). Answers depend on the coordinates only: driver and ranks each
    compute them."""

    distribute: Callable[[Coordinates], Slice]
    """Return the slice of the rows that a rank gets."""
    collect: Callable[[Coordinates], bool]
    """True if a rank's output counts."""


def _all_rows(at: Coordinates) -> Slice:
    return Slice(0, 1)


def _by_data(at: Coordinates) -> Slice:
    return Slice(at.data, at.data_size)


def _by_rank(at: Coordinates) -> Slice:
    return Slice(at.rank, at.num_ranks)


def _all_ranks(at: Coordinates) -> bool:
    return True


def _last_stage(at: Coordinates) -> bool:
    return at.tensor == 0 and at.pipeline == at.pipeline_size - 1


def _first_of_replica(at: Coordinates) -> bool:
    return at.tensor == 0 and at.pipeline == 0


def _first_of_stage(at: Coordinates) -> bool:
    return at.tensor == 0 and at.data == 0


# By HybridFlow's names. `3d_all_micro_dp` is used on the mesh of generation, whose replicas along
# `data` are the members of micro-DP groups.
PROTOCOLS: dict[str, Protocol] = {
    "one_to_all": Protocol(_all_rows, _all_ranks),
    "3d": Protocol(_by_data, _last_stage),
    "3d_all_micro_dp": Protocol(_by_data, _first_of_replica),
    "3d_pp_only": Protocol(_all_rows, _first_of_stage),
    "dp": Protocol(_by_rank, _all_ranks),
    "all_to_all": Protocol(_by_rank, _all_ranks),
}
