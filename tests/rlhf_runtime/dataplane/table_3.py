"""HybridFlow's table 3 in its own words: which rows every rank is given, and who is collected.

Naive: rank by rank and row by row, from the groups of ranks that the paper names.
Source: HybridFlow, table 3 and section 5.
"""

from __future__ import annotations

from itertools import product
from math import ceil
from typing import NamedTuple

from rlhf_api.mesh import Mesh

GRIDS = [
    Mesh(pool="a", data=data, tensor=tensor, pipeline=pipeline)
    for pipeline, tensor, data in product((1, 2), repeat=3)
] + [
    Mesh(pool="a", data=data, tensor=2, tensor_stride=stride)
    for data, stride in ((2, 2), (4, 2), (4, 4))
]
"""Every (p, t, d) up to 2 x 2 x 2, and tensor ranks that are not neighbours."""

NUM_GROUPS = (1, 5, 7, 8)
"""Fewer than ranks, and such as no number of ranks divides."""


class MegatronRank(NamedTuple):
    """A rank's groups."""

    dp: int
    """Which data-parallel replica it is in."""
    pp: int
    """Which pipeline stage it is."""
    tp: int
    """Which part of every layer it has."""


def megatron_ranks(mesh: Mesh) -> list[MegatronRank]:
    """In the order of their numbers: tensor ranks are neighbours, then stages, then replicas; with
    a stride so many replicas are next to each other before the next tensor rank."""
    ranks = []
    for block in range(mesh.data // mesh.tensor_stride):
        for pp in range(mesh.pipeline):
            for tp in range(mesh.tensor):
                for dp in range(mesh.tensor_stride):
                    ranks.append(MegatronRank(block * mesh.tensor_stride + dp, pp, tp))
    return ranks


def chunks(count: int, parts: int) -> list[list[int]]:
    """Items dealt to parts in order: the last bit of item i lies in this part of the whole."""
    made: list[list[int]] = [[] for _ in range(parts)]
    for item in range(count):
        made[ceil((item + 1) * parts / count) - 1].append(item)
    return made


def given(name: str, mesh: Mesh, count: int) -> list[list[int]]:
    """What of so many items every rank is given, in the order of ranks."""
    ranks = megatron_ranks(mesh)
    everything = list(range(count))
    match name:
        case "one_to_all" | "3d_pp_only":  # broadcast to all ranks
            return [everything for _ in ranks]
        case "3d":  # split by DP, each part broadcast within its DP replica
            return [chunks(count, mesh.data)[rank.dp] for rank in ranks]
        case "3d_all_micro_dp":  # split by micro-DP: a replica of the generation mesh each
            return [chunks(count, mesh.data)[rank.dp] for rank in ranks]
        case "dp" | "all_to_all":  # every rank has a part of its own
            return chunks(count, len(ranks))
    raise AssertionError(name)


def collected(name: str, mesh: Mesh) -> list[int]:
    """The numbers of the ranks whose output counts."""
    ranks = megatron_ranks(mesh)
    match name:
        case "one_to_all" | "dp" | "all_to_all":
            return list(range(len(ranks)))
        case "3d":  # the last stage's first tensor rank of every DP replica
            last = mesh.pipeline - 1
            return [n for n, rank in enumerate(ranks) if (rank.pp, rank.tp) == (last, 0)]
        case "3d_all_micro_dp":  # local rank 0 of every micro-DP replica
            return [n for n, rank in enumerate(ranks) if (rank.pp, rank.tp) == (0, 0)]
        case "3d_pp_only":  # t = 0 and d = 0 of every stage
            return [n for n, rank in enumerate(ranks) if (rank.dp, rank.tp) == (0, 0)]
    raise AssertionError(name)
