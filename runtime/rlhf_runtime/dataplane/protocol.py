"""The one transfer rule: which rows a rank gets, and which ranks' outputs count.

distribute = rows cut by the coordinate on one mesh axis, equal on all other axes; collect = the ranks
of a mask. The protocols of HybridFlow are instances. Source: HybridFlow, table 3.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from rlhf_api.plan import CallKind, Mesh
from rlhf_runtime.dataplane.columns import Rows
from rlhf_runtime.dataplane.shards import ShardIndex


@dataclass(frozen=True)
class Coordinates:
    """A rank's place in the mesh of a call."""

    data: int
    data_size: int
    tensor: int = 0
    tensor_size: int = 1
    pipeline: int = 0
    pipeline_size: int = 1

    @staticmethod
    def of(rank: int, mesh: Mesh) -> Coordinates:
        """A rank's place: tensor ranks are consecutive, then pipeline stages, then replicas."""
        inner = mesh.tensor * mesh.pipeline
        return Coordinates(
            data=rank // inner,
            data_size=mesh.data,
            tensor=rank % mesh.tensor,
            tensor_size=mesh.tensor,
            pipeline=rank // mesh.tensor % mesh.pipeline,
            pipeline_size=mesh.pipeline,
        )


Cut = Callable[[ShardIndex, int], list[Rows]]


@dataclass(frozen=True)
class Protocol:
    """A pair (distribute, collect)."""

    distribute: Callable[[ShardIndex, Coordinates, Cut], Rows]
    collect: Callable[[Coordinates], bool]


def _by_data(index: ShardIndex, at: Coordinates, cut: Cut) -> Rows:
    return cut(index, at.data_size)[at.data]


def _everything(index: ShardIndex, at: Coordinates, cut: Cut) -> Rows:
    return index.rows


PROTOCOLS: Mapping[str, Protocol] = {
    "one_to_all": Protocol(_everything, lambda at: True),
    "3d": Protocol(_by_data, lambda at: at.tensor == 0 and at.pipeline == at.pipeline_size - 1),
    "3d_all_micro_dp": Protocol(_by_data, lambda at: at.tensor == 0 and at.pipeline == 0),
    "3d_pp_only": Protocol(_everything, lambda at: at.tensor == 0 and at.data == 0),
    "dp": Protocol(_by_data, lambda at: True),
    "all_to_all": Protocol(_by_data, lambda at: True),
}
"""By HybridFlow's names. `dp` and `all_to_all` are given a mesh with one rank per data coordinate."""

BY_KIND: Mapping[CallKind, str] = {
    CallKind.GENERATE: "3d_all_micro_dp",
    CallKind.INFER: "3d",
    CallKind.TRAIN: "3d",
    CallKind.COMPUTE: "3d",
    CallKind.SCORE: "dp",
}
"""Which protocol a kind of call uses."""


def protocol_of(kind: CallKind) -> Protocol:
    """The protocol of a kind of call."""
    return PROTOCOLS[BY_KIND[kind]]
