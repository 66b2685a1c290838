"""Which ranks of a pool do something together that are no mesh of a role. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from rlhf_api.plan import Plan, union_ranks

RankSet = tuple[int, ...]
"""Ranks of a pool, ascending."""


def generating_ranks(plan: Plan, pool: str) -> Mapping[str, RankSet]:
    """For each role that generates in a pool the ranks that hold its model or generate with it."""
    found = {}
    for generation in plan.generations:
        planned = plan.role(generation.role)
        assert planned is not None and planned.mesh is not None
        if planned.mesh.pool == pool:
            found[generation.role] = union_ranks(planned.mesh, generation.mesh)
    return found


def fused_engines(plan: Plan, pool: str) -> Mapping[str, RankSet]:
    """For each role of which some engines in a pool finish the last responses of all, the ranks of
    all of them."""
    return {
        generation.role: tuple(generation.mesh.ranks)
        for generation in plan.generations
        if generation.fusion is not None and generation.mesh.pool == pool
    }
