"""Expected times of calls and steps, and the record of a plan's search."""

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
    """Expected time of one call of a step that runs on ranks."""

    call: CallId
    """The call site."""
    seconds: NonNegativeFloat
    """Seconds of one run, alone on its ranks."""
    late_seconds: NonNegativeFloat | None = None
    """Part of `seconds` for the second run of a fused call, over the responses that ended last.
    None: the call is not fused."""
    bottleneck: Identifier
    """Largest cost, such as compute, memory or tensor_communication."""


class PipelineFusion(Contract):
    """Estimate of intra-stage fusion: two training pipelines run on the same devices in opposite
    directions, each in the bubbles of the other.

    The runtime does not execute it, so no plan contains it. Source: RLHFuse (arXiv 2409.13221),
    intra-stage fusion.
    """

    calls: tuple[CallId, CallId]
    """The two training calls, in program order."""
    serial_seconds: NonNegativeFloat
    """Seconds of both pipelines in a step, one after the other."""
    fused_seconds: NonNegativeFloat
    """Seconds of both pipelines in the best schedule found."""
    bound_seconds: NonNegativeFloat
    """Lower bound of any schedule, in seconds."""
    bubble_share: Fraction
    """Share of device time that is idle in that schedule."""
    serial_bubble_share: Fraction
    """Share of device time that is idle without fusion."""
    activation_bytes: Bytes
    """Peak memory of micro-batches in flight on a device."""

    @property
    def saved_seconds(self) -> float:
        """Seconds saved in a step."""
        return self.serial_seconds - self.fused_seconds


class ConversationEstimate(Contract):
    """Expected conversations of a step, and its waits for their tools."""

    turns: NonNegativeFloat
    """Assumed mean number of turns."""
    sampled_share: Fraction
    """Assumed share of a response's tokens that are sampled; the others are answers."""
    tool_seconds: NonNegativeFloat
    """Assumed mean seconds of the calls of a turn."""
    wait_seconds: NonNegativeFloat
    """Seconds of a step in which engines have nothing to decode, and wait for tools."""


class StepEstimate(Contract):
    """Expected mean step of the algorithm, computed from shapes, rows, mean lengths and the
    performance of the devices."""

    hardware: dict[Name, Text]
    """Assumed hardware of each pool."""
    is_measured: bool = False
    """True if times of layers come from a profile, not from data sheets."""
    prompt_tokens: NonNegativeFloat
    """Assumed mean number of tokens of a prompt."""
    response_tokens: NonNegativeFloat
    """Assumed mean number of tokens of a response."""
    step_seconds: NonNegativeFloat
    """Seconds from the end of one step to the end of the next."""
    tokens_per_step: NonNegativeFloat
    """Prompt and response tokens of a step that are generated, or trained on if nothing is
    generated."""
    idle_share: Fraction
    """Share of the time of all ranks that is idle."""
    calls: Annotated[tuple[CallEstimate, ...], Field(max_length=512)]
    """Calls in program order."""
    conversations: ConversationEstimate | None = None
    """Conversations, and waits for their tools. None: responses have one turn."""
    pipeline_fusions: Annotated[tuple[PipelineFusion, ...], Field(max_length=64)] = ()
    """Possible savings by interleaving the training of two roles, which the plan does not do."""

    @property
    def tokens_per_second(self) -> float:
        """Tokens per second of all devices together; 0 if a step takes no time."""
        return self.tokens_per_step / self.step_seconds if self.step_seconds else 0.0

    @property
    def seconds_by_call(self) -> dict[str, float]:
        """Seconds of one run of each call, by its site."""
        return {call.call: call.seconds for call in self.calls}

    @property
    def late_seconds_by_call(self) -> dict[str, float]:
        """Seconds of the second run of each fused call, by its site."""
        return {
            call.call: call.late_seconds for call in self.calls if call.late_seconds is not None
        }


class Alternative(Contract):
    """The plan of a simpler rule, for comparison."""

    name: Text
    """Name for people."""
    step_seconds: NonNegativeFloat | None
    """Expected seconds of a step. None: the plan does not fit."""
    fullest_bytes: Bytes | None = None
    """Peak bytes on the fullest device. None: the plan does not fit."""


class PoolPart(Contract):
    """Devices of a node pool: some devices of one node, or complete nodes."""

    name: Name
    """The pool."""
    nodes: Count
    """Number of nodes."""
    devices_per_node: Count
    """Number of devices used on each node."""

    @property
    def num_devices(self) -> int:
        """Number of devices on all nodes."""
        return self.nodes * self.devices_per_node


class ComparedSize(Contract):
    """One candidate number of devices."""

    pools: Annotated[tuple[PoolPart, ...], Field(min_length=1, max_length=16)]
    """Devices of each pool."""
    step_seconds: NonNegativeFloat | None
    """Shortest step found, in seconds. None: none was found, or a bound excluded this size."""
    bound_seconds: NonNegativeFloat | None
    """Lower bound on the step in seconds; 0: no bound is available. None: no plan exists."""

    @property
    def num_devices(self) -> int:
        """Number of devices of all pools."""
        return sum(pool.num_devices for pool in self.pools)


class PlanSearch(Contract):
    """Record of the search for the plan.

    The bound covers all compared placements x model parallelism x engine sizes x micro-batches x
    recomputation x offloading. Stage fusion is tried on a few of these plans and not covered.
    """

    num_placements: Count
    """Number of compared placements."""
    bound_seconds: NonNegativeFloat
    """Lower bound on the seconds of a step over all plans that the search covers."""
    is_optimal: bool
    """True if the search proves that no plan it covers has shorter steps."""
    unfused_seconds: NonNegativeFloat | None = None
    """Seconds of a step of the fastest plan without stage fusion. None: the chosen plan has
    none."""
    alternatives: Annotated[tuple[Alternative, ...], Field(max_length=16)] = ()
    """Plans of simpler rules, for comparison."""
    sizes: Annotated[tuple[ComparedSize, ...], Field(max_length=64)] = ()
    """Compared numbers of devices, ascending. Empty: the job uses all devices."""
