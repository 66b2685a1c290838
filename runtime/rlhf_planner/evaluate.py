"""Evaluation of a plan: times of its calls and steps, and memory of its devices. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rlhf_api.calls import CallKind
from rlhf_api.plan import GraphName, Plan, Pool
from rlhf_api.plan_estimate import CallEstimate, ConversationEstimate, StepEstimate
from rlhf_api.plan_memory import MemoryPlan
from rlhf_flow.errors import DevicesUnknown
from rlhf_planner.cost.batches import tokens_per_step
from rlhf_planner.cost.collectives import Links
from rlhf_planner.cost.hardware import Hardware
from rlhf_planner.cost.measured_layers import measured_hardware, require_ranks
from rlhf_planner.cost.plan import PlanCosts
from rlhf_planner.cost.pool_hardware import pool_hardware
from rlhf_planner.cost.seconds import CallSeconds, in_turn
from rlhf_planner.pipelines.plan_fusions import pipeline_fusions
from rlhf_planner.problem.problem import PlanningProblem
from rlhf_planner.problem.profile import Profile
from rlhf_planner.simulation.simulate import GroupUse, Simulation
from rlhf_planner.simulation.step_tasks import simulate_step


@dataclass(frozen=True)
class Estimate:
    """Times and memory of a plan."""

    calls: Mapping[str, CallSeconds]
    """Seconds of one run of each call of the step with ranks, by site, in program order."""
    late_seconds: Mapping[str, float]
    """Seconds of the second parts of calls that begin before the last response has ended."""
    simulation: Simulation
    """Some simulated steps."""
    tokens_per_step: float
    """Prompt and response tokens of a step."""
    memory: tuple[MemoryPlan, ...]
    """Memory of each group of devices."""

    @property
    def step_seconds(self) -> float:
        """Seconds from the end of a step to the end of the next, in the long run."""
        return self.simulation.step_seconds

    @property
    def uses(self) -> tuple[GroupUse, ...]:
        """Busy time of ranks, by groups that run the same calls."""
        return self.simulation.uses


def evaluate(problem: PlanningProblem, plan: Plan, hardware: Mapping[str, Hardware]) -> Estimate:
    """Estimate times and memory of a plan.

    Args:
        problem: the planning problem.
        plan: its plan.
        hardware: of the devices of each pool.
    """
    links = {pool.name: Links(hardware[pool.name], pool.devices_per_node) for pool in plan.pools}
    costs = PlanCosts(problem, plan, links)
    parts = {
        call.call: costs.parts(call)
        for call in plan.calls
        if call.graph is GraphName.STEP and call.mesh is not None
    }
    calls = {call: in_turn(call_parts) for call, call_parts in parts.items()}
    totals = {call: seconds.total for call, seconds in calls.items()}
    # A call of two parts counts with both; its second part begins after the last response.
    late = {call: call_parts[1].total for call, call_parts in parts.items() if len(call_parts) > 1}
    simulation = simulate_step(problem.graphs[GraphName.STEP], plan, totals, late)
    return Estimate(calls, late, simulation, tokens_per_step(problem), plan.memory)


def hardware_of_pools(pools: Sequence[Pool], profile: Profile | None = None) -> dict[str, Hardware]:
    """Rates of the devices of each pool.

    Args:
        pools: the devices.
        profile: measured on such devices. None: rates of data sheets.

    Raises:
        DevicesUnknown: an unknown GPU, or one without a name.
        ProfileUnusable: the profile was measured on other devices.
    """
    by_pool = {pool.name: pool_hardware(pool) for pool in pools}
    if profile is None:
        return by_pool
    # Ranks on a CPU share its cores, so measurements hold for one number of ranks only.
    for pool in pools:
        require_ranks(profile, pool.device, pool.devices_per_node)
    return {name: measured_hardware(hardware, profile) for name, hardware in by_pool.items()}


def with_estimate(problem: PlanningProblem, plan: Plan) -> Plan:
    """Add estimated times to a plan, or the reason why there are none.

    Raises:
        ProfileUnusable: the problem's profile lacks what the plan does.
    """
    try:
        hardware = hardware_of_pools(plan.pools, problem.profile)
    except DevicesUnknown as error:
        # The plan can run without times, so it only says why there are none.
        reasons = (*plan.reasons, f"times are not estimated: {error}")
        return plan.model_copy(update={"reasons": reasons})
    evaluation = evaluate(problem, plan, hardware)
    estimate = _step_estimate(problem, plan, evaluation, hardware).model_copy(
        update={"pipeline_fusions": pipeline_fusions(problem, plan, hardware)}
    )
    return plan.model_copy(update={"estimate": estimate})


def _step_estimate(
    problem: PlanningProblem, plan: Plan, estimate: Estimate, hardware: Mapping[str, Hardware]
) -> StepEstimate:
    return StepEstimate(
        hardware={pool: device.name for pool, device in hardware.items()},
        is_measured=problem.profile is not None,
        prompt_tokens=problem.workload.expected_prompt_tokens,
        response_tokens=problem.workload.expected_response_tokens,
        step_seconds=estimate.step_seconds,
        tokens_per_step=estimate.tokens_per_step,
        idle_share=_idle_share(estimate, plan.num_devices),
        calls=tuple(
            CallEstimate(
                call=call,
                seconds=seconds.total,
                late_seconds=estimate.late_seconds.get(call),
                bottleneck=seconds.bottleneck,
            )
            for call, seconds in estimate.calls.items()
        ),
        conversations=_conversations(problem, estimate),
    )


def _conversations(problem: PlanningProblem, estimate: Estimate) -> ConversationEstimate | None:
    """Expected conversations. None: responses have one turn."""
    workload, graph = problem.workload.conversations, problem.graphs[GraphName.STEP]
    if workload is None:
        return None
    return ConversationEstimate(
        turns=workload.turns,
        sampled_share=workload.sampled_share,
        tool_seconds=workload.tool_seconds,
        wait_seconds=sum(
            graph.expected_count(call.id) * estimate.calls[call.id].tools
            for call in graph.calls_of_kind(CallKind.GENERATE)
        ),
    )


def _idle_share(estimate: Estimate, num_devices: int) -> float:
    """Share of the time of all devices in which nothing runs."""
    # `Simulation.idle_share` leaves out devices without any call; here they count as idle.
    busy = sum(use.busy_share * use.group.num_ranks for use in estimate.uses)
    return max(0.0, 1.0 - busy / num_devices)
