"""What a rank is told when it starts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rlhf_api.job import RLHFJob
from rlhf_api.plan import Plan
from rlhf_flow.losses import PolicyLoss, ValueLoss
from rlhf_runtime.faults import Fault


@dataclass(frozen=True)
class RankSetup:
    """A rank's place and the job it works for."""

    job: RLHFJob
    plan: Plan
    losses: Mapping[str, PolicyLoss | ValueLoss]
    rank: int
    world_size: int
    address: str
    """Where rank 0 serves the world's store; 127.0.0.1 for a world on one machine."""
    timeout_seconds: float
    """Longest wait for the other ranks in a collective."""
    num_threads: int
    """Threads of its numerical libraries."""
    incarnation: str
    log_file: Path
    python_path: tuple[str, ...]
    """Folders of the user's own code."""
    faults: tuple[Fault, ...] = ()
    """Faults on purpose."""
