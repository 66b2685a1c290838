"""How long the planner expects calls and steps to take."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from rlhf_api.base import (
    Contract,
    Count,
    Fraction,
    Identifier,
    Name,
    NonNegativeFloat,
    Text,
)
from rlhf_api.calls import CallId
from rlhf_api.plan_memory import Bytes


class CallEstimate(Contract):
    """A call of a step that runs on ranks."""

    call: CallId
    """The call site."""
    seconds: NonNegativeFloat
    """Of one run, from its start to its end, alone on its ranks."""
    late_seconds: NonNegativeFloat | None = None
    """Of these, those of its second part, over the responses that ended last. None: it has one
    part."""
    bottleneck: Identifier
    """What most of them are spent on, such as compute, memory or tensor_communication."""


class PipelineFusion(Contract):
    """Intra-stage fusion: two training pipelines on the same devices, in opposite directions, each
    in the other's bubbles. The runtime does not run it, so no plan has it; this is what it would
    save.

    Source: RLHFuse (arXiv 2409.13221), intra-stage fusion.
    """

    calls: tuple[CallId, CallId]
    """The calls that train, in program order."""
    serial_seconds: NonNegativeFloat
    """Of both pipelines in a step, one after the other."""
    fused_seconds: NonNegativeFloat
    """Of both in the schedule that was found."""
    bound_seconds: NonNegativeFloat
    """No schedule takes less."""
    bubble_share: Fraction
    """Of the devices' time in that schedule."""
    serial_bubble_share: Fraction
    """The same of one after the other."""
    activation_bytes: Bytes
    """What a device holds at most of micro-batches under way."""

    @property
    def saved_seconds(self) -> float:
        """Of a step."""
        return self.serial_seconds - self.fused_seconds


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
    pipeline_fusions: Annotated[tuple[PipelineFusion, ...], Field(max_length=64)] = ()
    """What interleaving the training of two roles would save. The plan does not do it."""

    @property
    def tokens_per_second(self) -> float:
        """Of all devices together; 0 where a step takes no time."""
        return self.tokens_per_step / self.step_seconds if self.step_seconds else 0.0

    @property
    def seconds_by_call(self) -> dict[str, float]:
        """Seconds of one run of each call, by its site."""
        return {each.call: each.seconds for each in self.calls}

    @property
    def late_seconds_by_call(self) -> dict[str, float]:
        """Seconds of the second part of each call that has one, by its site."""
        late = {each.call: each.late_seconds for each in self.calls}
        return {call: seconds for call, seconds in late.items() if seconds is not None}


class Alternative(Contract):
    """A plan that was not chosen."""

    name: Text
    """What it is, for people."""
    step_seconds: NonNegativeFloat | None
    """Of its steps. None: it does not fit."""
    fullest_bytes: Bytes | None = None
    """On the device with least memory left, at its peak. None: it does not fit."""


class PoolPart(Contract):
    """Devices of a node pool: some of one node, or whole nodes."""

    name: Name
    """The pool."""
    nodes: Count
    """Nodes."""
    devices_per_node: Count
    """Devices of each."""

    @property
    def num_devices(self) -> int:
        """Devices of all of its nodes."""
        return self.nodes * self.devices_per_node


class ComparedSize(Contract):
    """A number of devices that the plan might have taken."""

    pools: Annotated[tuple[PoolPart, ...], Field(min_length=1, max_length=16)]
    """Which devices."""
    step_seconds: NonNegativeFloat | None
    """Of the shortest steps that were found there. None: none were, or a bound ruled them out."""
    bound_seconds: NonNegativeFloat | None
    """No plan there has shorter steps; 0 where nothing is known. None: there is no plan."""

    @property
    def num_devices(self) -> int:
        """Devices of all pools."""
        return sum(pool.num_devices for pool in self.pools)


class PlanSearch(Contract):
    """How far the search for the plan went.

    What it says is about one family of plans: the compared placements, each with every cut of every
    model and size of engines, micro-batches and recomputation of each role, and all, none or what
    can be derived of the roles that share devices offloaded; without a stage fusion, which is
    looked for on a few of them, and not bounded.
    """

    num_placements: Count
    """Placements that were compared."""
    bound_seconds: NonNegativeFloat
    """No plan of the family has shorter steps."""
    is_optimal: bool
    """Whether it is proved that no plan of the family has shorter steps."""
    unfused_seconds: NonNegativeFloat | None = None
    """Of a step of the fastest plan without a stage fusion that was found. None: it is the plan."""
    alternatives: Annotated[tuple[Alternative, ...], Field(max_length=16)] = ()
    """What simpler rules would have chosen."""
    sizes: Annotated[tuple[ComparedSize, ...], Field(max_length=64)] = ()
    """Numbers of devices that were compared, ascending. Empty: all are taken, as asked for."""
