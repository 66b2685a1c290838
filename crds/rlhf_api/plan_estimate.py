"""How long the planner expects calls and steps to take."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from rlhf_api.base import Contract, Count, Fraction, Identifier, Name, NonNegativeFloat, Text
from rlhf_api.calls import CallId


class CallEstimate(Contract):
    """A call of a step that runs on ranks."""

    call: CallId
    """The call site."""
    seconds: NonNegativeFloat
    """Of one run, from its start to its end, alone on its ranks."""
    bottleneck: Identifier
    """What most of them are spent on, such as compute, memory or tensor_communication."""


class StepEstimate(Contract):
    """A step of the algorithm in the long run, by arithmetic from shapes, rows, mean lengths and
    what the devices can do."""

    hardware: dict[Name, Text]
    """What the devices of each pool are taken to be."""
    is_measured: bool = False
    """Whether a profile says what layers take there, and not data sheets."""
    prompt_tokens: NonNegativeFloat
    """Tokens of a prompt that it counts with, on average."""
    response_tokens: NonNegativeFloat
    """Tokens of a response that it counts with, on average."""
    step_seconds: NonNegativeFloat
    """From the end of one step to the end of the next."""
    tokens_per_step: NonNegativeFloat
    """Prompt and response tokens that a step works on: of what is generated, or trained on where
    nothing is."""
    idle_share: Fraction
    """Of the time of all ranks."""
    calls: Annotated[tuple[CallEstimate, ...], Field(max_length=512)]
    """In program order."""

    @property
    def tokens_per_second(self) -> float:
        """Of all devices together; 0 where a step takes no time."""
        return self.tokens_per_step / self.step_seconds if self.step_seconds else 0.0

    @property
    def seconds_by_call(self) -> dict[str, float]:
        """Seconds of one run of each call, by its site."""
        return {each.call: each.seconds for each in self.calls}


class Alternative(Contract):
    """A plan that was not chosen."""

    name: Text
    """What it is, for people."""
    step_seconds: NonNegativeFloat | None
    """Of its steps. None: it does not fit."""


class PlanSearch(Contract):
    """How far the search for the plan went.

    What it says is about one family of plans: the compared placements, each with every cut of every
    model and size of engines, micro-batches and recomputation of each role, and all, none or what
    can be derived of the roles that share devices offloaded.
    """

    num_placements: Count
    """Placements that were compared."""
    bound_seconds: NonNegativeFloat
    """No plan of the family has shorter steps."""
    is_optimal: bool
    """Whether it is proved that no plan of the family has shorter steps."""
    alternatives: Annotated[tuple[Alternative, ...], Field(max_length=16)] = ()
    """What simpler rules would have chosen."""
