"""What a rank is told when it starts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rlhf_api.plan import Plan, union_ranks
from rlhf_api.spec.job import RLHFJob
from rlhf_runtime.faults import Fault

RankSet = tuple[int, ...]
"""Ranks of a pool, ascending."""


@dataclass(frozen=True)
class RankSetup:
    """A rank's place and the job it works for."""

    job: RLHFJob
    plan: Plan
    pool: str
    """Whose rank it is."""
    rank: int
    """As the pool numbers them."""
    one_machine: bool
    """Whether all workers are on this machine: then nothing listens to others."""
    timeout_seconds: float
    """Longest wait for the other ranks in a collective."""
    num_threads: int | None
    """Threads of its numerical libraries. None: an equal share of its node's cores."""
    incarnation: str
    log_file: Path
    python_path: tuple[str, ...]
    """Folders of the user's own code."""
    faults: tuple[Fault, ...] = ()
    """Faults on purpose."""

    @property
    def global_rank(self) -> int:
        """Among all ranks of the job."""
        return self.plan.rank_offset(self.pool) + self.rank

    @property
    def world_size(self) -> int:
        """Ranks of the pool."""
        return self.plan.pool(self.pool).num_devices


def generating_ranks(plan: Plan, pool: str) -> Mapping[str, RankSet]:
    """For each role that generates in a pool the ranks that hold its model or generate with it."""
    ranks_by_role = {}
    for generation in plan.generations:
        planned = plan.role(generation.role)
        assert planned is not None and planned.mesh is not None
        if planned.mesh.pool == pool:
            ranks_by_role[generation.role] = union_ranks(planned.mesh, generation.mesh)
    return ranks_by_role


def fused_engines(plan: Plan, pool: str) -> Mapping[str, RankSet]:
    """For each role of which some engines in a pool finish the last responses of all, the ranks of
    all of them."""
    return {
        generation.role: tuple(generation.mesh.ranks)
        for generation in plan.generations
        if generation.fusion is not None and generation.mesh.pool == pool
    }
