"""What a response is worth: a weighted sum of verifiers."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, ClassVar

from pydantic import Field

from rlhf_api.base import Contract, Count, Entrypoint, Identifier
from rlhf_api.cel import texts
from rlhf_api.rules import Rule, found
from rlhf_api.spec.algorithm import ParameterValue

RESERVED_REWARDS = ("mean", "std", "kl", "multiplier")
"""Names that other metrics of a reward's role have."""


class OnRewardError(StrEnum):
    """What happens to a sample whose verifier raised, timed out or answered nonsense."""

    EXCLUDE = "Exclude"
    """It is marked, counted and left out of training."""
    ZERO = "Zero"
    """It is marked, counted and scored 0."""
    FAIL = "Fail"
    """The job stops."""


class FunctionReward(Contract):
    """A Python verifier, called with batches of samples in processes of its own."""

    entrypoint: Entrypoint
    """The function as `package.module:name`. It takes a list of rlhf_runtime.rewards.Sample
    (prompt, response, record) and the parameters, and returns one number for each."""
    parameters: Annotated[dict[Identifier, ParameterValue], Field(max_length=64)] = {}
    """Passed to the function as keyword arguments."""
    timeout_seconds: Count = 10
    """Longest time for one batch; then it is stopped and its samples count as errors."""
    batch_size: Annotated[int, Field(ge=1, le=65536)] = 256
    """Samples per call."""
    processes: Annotated[int, Field(ge=1, le=256)] = 1
    """Processes that score side by side."""
    on_error: OnRewardError = OnRewardError.EXCLUDE
    """What happens to samples that could not be scored: Exclude, Zero or Fail."""


class RewardSpec(Contract):
    """One term of the reward."""

    name: Identifier = "reward"
    """Its name in metrics; unique in the job."""
    role: Identifier = "reward"
    """The algorithm's role that it is a term of; a custom algorithm may have several, such as a
    reward and a cost."""
    weight: float = 1.0
    """Factor in the sum."""
    function: FunctionReward
    """The Python verifier that computes it."""

    validations: ClassVar = (
        Rule(
            holds=f"!(self.name in {texts(RESERVED_REWARDS)})",
            what="the role's own metrics have such names",
            got="self.name",
            allowed="any other name",
            do="rename it",
            field=".name",
            check=lambda self: found(self.name in RESERVED_REWARDS, self.name),
        ),
    )
