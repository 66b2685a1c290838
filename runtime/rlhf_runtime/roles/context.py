"""What a role knows about the job and its rank."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import torch

from rlhf_api.plan import Plan, RolePlan
from rlhf_api.spec.job import RLHFJob
from rlhf_api.spec.models import Precision
from rlhf_runtime.dataplane.columns import Column
from rlhf_runtime.dataplane.shards import Shard, ShardIndex
from rlhf_runtime.engines.parallel import ParallelContext, RankGroup
from rlhf_runtime.engines.training import TrainingEngine
from rlhf_runtime.engines.world import World
from rlhf_runtime.faults import Faults
from rlhf_runtime.hooks import Hook, nothing
from rlhf_runtime.workers.inputs import Inputs
from rlhf_runtime.workers.orders import Statistics

if TYPE_CHECKING:
    from rlhf_runtime.roles.generation import Generation

DTYPES = {Precision.FLOAT32: torch.float32, Precision.BFLOAT16: torch.bfloat16}


@dataclass(frozen=True)
class RoleContext:
    """The job as one role on one rank sees it."""

    job: RLHFJob
    plan: Plan
    role: str
    folder: Path
    """The model's folder in Hugging Face format."""
    world: World
    """The ranks of its pool."""
    mesh: ParallelContext | None
    """The ranks that hold its model for training and forward passes. None: not this one."""
    generating: RankGroup | None
    """The ranks that do so or generate with it, this one among them. None: nobody generates."""
    incarnation: str
    faults: Faults
    """Faults on purpose."""
    engines: RankGroup | None = None
    """The ranks that generate with it, where they have to agree on when to leave rows to some of
    them. None: this one does not, or they need not."""
    tick: Hook = nothing
    """Says that something was done."""

    @property
    def parallel(self) -> ParallelContext:
        """The ranks that hold its model, this one among them."""
        assert self.mesh is not None, f"{self.role} only generates here"
        return self.mesh

    @property
    def generates_here(self) -> bool:
        """Whether a generation engine of the role is on this rank."""
        generation = self.plan.generation(self.role)
        return generation is not None and self.world.rank in generation.mesh.ranks

    @property
    def precision(self) -> torch.dtype:
        """Number format of the role's computation."""
        precision = self.planned.precision
        assert precision is not None
        return DTYPES[precision]

    @property
    def micro_batch_tokens(self) -> int:
        """Padded tokens to run through the role's model at once."""
        tokens = self.planned.micro_batch_tokens
        assert tokens is not None
        return tokens

    @property
    def is_only_read(self) -> bool:
        """Whether its model stays as its source has it."""
        return not (self.planned.is_trained or self.planned.is_saved)

    @property
    def score_metric(self) -> str:
        """What the mean of its scores is called: as that of the reward whose model it is."""
        rewards = self.job.spec.rewards
        found = (each for each in rewards if each.model and each.model_role == self.role)
        reward = next(found, None)
        return f"{self.role}/score" if reward is None else f"{reward.role}/{reward.name}"

    @property
    def planned(self) -> RolePlan:
        """What the plan says of the role."""
        planned = self.plan.role(self.role)
        assert planned is not None
        return planned


class Role(Protocol):
    """A role on one rank: its model, and its primitives by name."""

    @property
    def engine(self) -> TrainingEngine | None:
        """Trains its model, or reads it. None: the role only generates on this rank."""

    @property
    def generation(self) -> Generation | None:
        """Its part in generation. None: it takes none on this rank."""

    @property
    def methods(self) -> Mapping[str, Callable[[Inputs], Result]]:
        """What its calls run."""

    def close(self) -> None:
        """End what it has started."""


@dataclass(frozen=True)
class Result:
    """What a role's method gives back."""

    columns: Mapping[str, Column] = field(default_factory=dict)
    statistics: Statistics = Statistics()
    index: ShardIndex | None = None
    """Rows of the columns; needed unless there are no columns."""
    left: Shard | None = None
    """Rows of the same columns that another call finishes."""
    began: float | None = None
    """When the work began, where other ranks had to come first; seconds since the epoch."""
