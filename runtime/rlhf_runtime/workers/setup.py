"""Settings of a rank at its start, and sets of ranks besides the meshes of roles. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rlhf_api.mesh import union_ranks
from rlhf_api.plan import Plan
from rlhf_api.spec.job import RLHFJob
from rlhf_runtime.faults import Fault
from rlhf_runtime.python_path import PythonPath

# Ray's name for the threads of a reward host that get ended responses. Threads of their own: all
# others may wait for scores.
EARLY_GROUP = "early"

# Ranks of a pool, ascending.
RankSet = tuple[int, ...]


@dataclass(frozen=True)
class RankSetup:
    """A rank's position and the job it works for."""

    job: RLHFJob
    plan: Plan
    pool: str
    """The pool that the rank belongs to."""
    rank: int
    """Rank within the pool."""
    one_machine: bool
    """True if all workers are on this machine: then nothing listens for other nodes."""
    timeout_seconds: float
    """Time limit for other ranks in a collective."""
    num_threads: int | None
    """Threads of numerical libraries. None: an equal share of the node's cores."""
    incarnation: str
    log_file: Path
    python_path: PythonPath
    """The user's code and its packages."""
    faults: tuple[Fault, ...] = ()
    """Injected faults."""

    @property
    def global_rank(self) -> int:
        """Rank among all ranks of the job."""
        return self.plan.rank_offset(self.pool) + self.rank

    @property
    def world_size(self) -> int:
        """Number of ranks in the pool."""
        return self.plan.pool(self.pool).num_devices


def generating_ranks(plan: Plan, pool: str) -> Mapping[str, RankSet]:
    """For each role that generates in a pool: ranks that hold its model or generate with it."""
    ranks_by_role = {}
    for generation in plan.generations:
        planned = plan.role(generation.role)
        assert planned is not None and planned.mesh is not None
        if planned.mesh.pool == pool:
            ranks_by_role[generation.role] = union_ranks(planned.mesh, generation.mesh)
    return ranks_by_role


def fused_engines(plan: Plan, pool: str) -> Mapping[str, RankSet]:
    """For each role with stage fusion in a pool: the ranks of all of its engines."""
    return {
        generation.role: tuple(generation.mesh.ranks)
        for generation in plan.generations
        if generation.fusion is not None and generation.mesh.pool == pool
    }
