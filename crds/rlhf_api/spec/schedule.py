"""Length of a job's training, and its batches."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from rlhf_api.base import (
    Contract,
    Count,
    Fraction,
    NonNegativeCount,
    NonNegativeFloat,
    PositiveFloat,
)
from rlhf_api.rules import Rule, violation_if


class WarmStartSpec(Contract):
    """Supervised training of the actor on reference answers before reinforcement learning."""

    max_steps: Count = 60
    """Largest number of steps."""
    stop_at_exact_match: Fraction | None = None
    """Exact match on evaluation data at which the warm start ends. A reward's function has to
    measure it. Default: it takes all its steps."""
    evaluate_every_steps: Count = 5
    """Steps between measurements of exact match, if stopAtExactMatch is set."""
    prompts_per_step: Count = 128
    """Rows per step."""
    learning_rate: PositiveFloat = 1e-3
    """AdamW's learning rate."""
    adam_beta2: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.98
    """Decay of the squared gradient's running mean."""
    weight_decay: Annotated[float, Field(ge=0.0)] = 0.01
    """Decoupled weight decay of matrices. Norms and biases have none."""


class EarlyStopSpec(Contract):
    """End of training before its last step, once evaluations no longer improve. The metric is that
    of checkpoint.keepBest."""

    patience: Count
    """Number of evaluations in a row that do not improve. The first evaluation, before the first
    step, can only be the one to improve on."""
    min_delta: NonNegativeFloat = 0.0
    """Smallest improvement: an evaluation improves if its metric exceeds the best one before these
    evaluations by more than this."""


class ScheduleSpec(Contract):
    """Steps and batches."""

    steps: Count
    """Training steps: each generates, scores and trains on promptsPerStep prompts. With earlyStop
    the largest number of steps."""
    prompts_per_step: Count
    """Prompts per step; each is answered rollout.samplesPerPrompt times."""
    mini_batch_prompts: Count | None = None
    """Prompts per optimizer step. If it does not divide promptsPerStep, a step has one more update,
    and all updates share the prompts evenly. Default: all prompts of a step."""
    evaluate_every_steps: NonNegativeCount = 25
    """Steps between evaluations, which generate and score responses to evaluation prompts. 0: only
    before and after training."""
    seed: Annotated[int, Field(ge=0, le=2**31 - 1)] = 0
    """Seed of all randomness."""
    warm_start: WarmStartSpec | None = None
    """Supervised training before reinforcement learning. Default: none."""
    early_stop: EarlyStopSpec | None = None
    """Training ends before its last step if evaluations do not improve. Learning rates decay as if
    all steps were made. Default: all steps are made."""

    validations: ClassVar = (
        Rule(
            holds="!has(self.miniBatchPrompts) || self.miniBatchPrompts <= self.promptsPerStep",
            what="a mini-batch larger than the step",
            allowed="at most promptsPerStep",
            do="make it smaller",
            field=".miniBatchPrompts",
            check=lambda self: violation_if(
                (self.mini_batch_prompts or 0) > self.prompts_per_step,
                self.mini_batch_prompts,
                f"at most promptsPerStep, {self.prompts_per_step}",
            ),
        ),
        Rule(
            holds="!has(self.earlyStop) || self.evaluateEverySteps > 0",
            what="earlyStop without evaluations between steps",
            allowed="evaluateEverySteps of at least 1",
            do="raise it, or remove earlyStop",
            field=".evaluateEverySteps",
            check=lambda self: violation_if(
                self.early_stop is not None and self.evaluate_every_steps == 0, 0
            ),
        ),
    )

    @property
    def updates_per_epoch(self) -> int:
        """Optimizer steps in one pass over a step's batch."""
        # Rounded up: a remainder makes one more update.
        return -(-self.prompts_per_step // (self.mini_batch_prompts or self.prompts_per_step))
