"""The context that a role gets, the interface it implements and the results it returns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import torch

from rlhf_api.plan import Plan, RolePlan
from rlhf_api.spec.job import RLHFJob
from rlhf_api.spec.models import Precision
from rlhf_runtime.calls.inputs import CallInputs
from rlhf_runtime.calls.reports import EpisodeReport, Statistics
from rlhf_runtime.dataplane.columns import Column
from rlhf_runtime.dataplane.shards import Shard, ShardIndex
from rlhf_runtime.engines.parallel import ParallelContext, RankGroup
from rlhf_runtime.engines.training import TrainingEngine
from rlhf_runtime.engines.world import World
from rlhf_runtime.faults import Faults
from rlhf_runtime.hooks import Hook, noop

if TYPE_CHECKING:
    from rlhf_runtime.conversations.interfaces import EnvironmentAccess
    from rlhf_runtime.roles.early_rows import SendEnded
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
    """The ranks that hold its model for training and forward passes. None: this rank does not."""
    sync_group: RankGroup | None
    """The ranks that hold its model or generate with it, this one included. None: the role does not
    generate."""
    incarnation: str
    faults: Faults
    """Faults injected on purpose."""
    excluded_tokens: tuple[range, ...] = ()
    """Token ids without a text: engines give them a probability of 0."""
    engine_group: RankGroup | None = None
    """The ranks of its generation engines, where unfinished rows migrate between them. None: no
    migration, or no engine on this rank."""
    tick: Hook = noop
    """Reports progress."""
    send_ended: SendEnded | None = None
    """Sends ended responses to the reward host that will score them. None: there is no one host."""
    environment: EnvironmentAccess | None = None
    """Access to the environments of conversations. None: the job has none."""

    @property
    def parallel(self) -> ParallelContext:
        """The ranks that hold its model, this one included."""
        assert self.mesh is not None, f"{self.role} only generates here"
        return self.mesh

    @property
    def generates_here(self) -> bool:
        """True if a generation engine of the role is on this rank."""
        generation = self.plan.generation(self.role)
        return generation is not None and self.world.rank in generation.mesh.ranks

    @property
    def precision(self) -> torch.dtype:
        """Number format of the role's computations."""
        precision = self.role_plan.precision
        assert precision is not None
        return DTYPES[precision]

    @property
    def micro_batch_tokens(self) -> int:
        """Maximum of padded tokens in a micro-batch of the role."""
        tokens = self.role_plan.micro_batch_tokens
        assert tokens is not None
        return tokens

    @property
    def is_frozen(self) -> bool:
        """True if its weights never differ from those of its source."""
        return not (self.role_plan.is_trained or self.role_plan.is_saved)

    @property
    def score_metric(self) -> str:
        """Name of the metric for its mean score: that of the reward whose model it is."""
        rewards = self.job.spec.rewards
        matches = (reward for reward in rewards if reward.model and reward.model_role == self.role)
        reward = next(matches, None)
        return f"{self.role}/score" if reward is None else f"{reward.role}/{reward.name}"

    @property
    def role_plan(self) -> RolePlan:
        """The role's part of the plan."""
        role_plan = self.plan.role(self.role)
        assert role_plan is not None
        return role_plan


class RankRole(Protocol):
    """A role on one rank: its model, and the methods that calls run."""

    @property
    def engine(self) -> TrainingEngine | None:
        """The engine that trains or reads its model. None: the role only generates on this rank."""

    @property
    def generation(self) -> Generation | None:
        """Its generation. None: this rank takes no part in it."""

    @property
    def methods(self) -> Mapping[str, Callable[[CallInputs], Result]]:
        """The methods that calls run, by name."""

    def close(self) -> None:
        """Release the role's resources."""


@dataclass(frozen=True)
class Result:
    """The result of a role's method."""

    columns: Mapping[str, Column] = field(default_factory=dict)
    statistics: Statistics = Statistics()
    index: ShardIndex | None = None
    """Rows of the columns; required unless there are no columns."""
    unfinished: Shard | None = None
    """Rows of the same columns that a later call finishes."""
    episodes: EpisodeReport | None = None
    """Outcome of conversations. None: there are none."""
    began: float | None = None
    """Start of the work, in seconds since the epoch, where it first waited for other ranks."""
