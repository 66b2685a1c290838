"""What a plan is worth: how long its calls and steps take, and what its devices hold. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rlhf_api.plan import GraphName, Plan, Pool
from rlhf_api.plan_estimate import CallEstimate, StepEstimate
from rlhf_api.plan_memory import MemoryPlan
from rlhf_flow.errors import DevicesUnknown
from rlhf_planner.cost.batches import tokens_per_step
from rlhf_planner.cost.calls import CallPrices, planned_models
from rlhf_planner.cost.collectives import Links
from rlhf_planner.cost.hardware import Hardware
from rlhf_planner.cost.measured_layers import measured_hardware, require_ranks
from rlhf_planner.cost.pool_hardware import pool_hardware
from rlhf_planner.cost.seconds import CallSeconds, in_turn
from rlhf_planner.pipelines.of_plan import pipeline_fusions
from rlhf_planner.problem.problem import PlanningProblem
from rlhf_planner.problem.profile import Profile
from rlhf_planner.simulation.simulate import GroupUse, Simulation
from rlhf_planner.simulation.step_tasks import simulate_step


@dataclass(frozen=True)
class Estimate:
    """Of a plan."""

    calls: Mapping[str, CallSeconds]
    """One run of each call of the step that has ranks, by its site, in program order."""
    late_seconds: Mapping[str, float]
    """Of these, those of second parts, of calls that begin before the last response has ended."""
    simulation: Simulation
    """Some steps of it."""
    tokens_per_step: float
    """Prompt and response tokens."""
    memory: tuple[MemoryPlan, ...]
    """Of each group of devices."""

    @property
    def step_seconds(self) -> float:
        """Seconds from the end of a step to that of the next, in the long run."""
        return self.simulation.step_seconds

    @property
    def uses(self) -> tuple[GroupUse, ...]:
        """For how much of that time ranks are busy, by groups that run the same calls."""
        return self.simulation.uses


def evaluate(problem: PlanningProblem, plan: Plan, hardware: Mapping[str, Hardware]) -> Estimate:
    """How long the steps of a plan take, and what its devices hold.

    Args:
        problem: what was planned.
        plan: of it.
        hardware: of the devices of each pool.
    """
    links = {pool.name: Links(hardware[pool.name], pool.devices_per_node) for pool in plan.pools}
    prices = CallPrices(problem, plan, planned_models(problem, plan), links)
    parts = {
        call.call: prices.parts(call)
        for call in plan.calls
        if call.graph is GraphName.STEP and call.mesh is not None
    }
    calls = {call: in_turn(each) for call, each in parts.items()}
    totals = {call: seconds.total for call, seconds in calls.items()}
    late = {call: each[1].total for call, each in parts.items() if len(each) > 1}
    simulation = simulate_step(problem.graphs[GraphName.STEP], plan, totals, late)
    return Estimate(calls, late, simulation, tokens_per_step(problem), plan.memory)


def hardware_of_pools(pools: Sequence[Pool], profile: Profile | None = None) -> dict[str, Hardware]:
    """What the devices of each pool can do.

    Args:
        pools: the devices.
        profile: measured on such devices. None: data sheets say what they can do.

    Raises:
        DevicesUnknown: of a GPU that is not known, or has no name.
        ProfileUnusable: it was measured on other devices.
    """
    found = {pool.name: pool_hardware(pool) for pool in pools}
    if profile is None:
        return found
    for pool in pools:
        require_ranks(profile, pool.device, pool.devices_per_node)
    return {name: measured_hardware(hardware, profile) for name, hardware in found.items()}


def with_estimate(problem: PlanningProblem, plan: Plan) -> Plan:
    """A plan with the times that its devices let expect, or with the reason why there are none.

    Raises:
        ProfileUnusable: the problem's profile lacks what the plan does.
    """
    try:
        hardware = hardware_of_pools(plan.pools, problem.profile)
    except DevicesUnknown as error:
        reasons = (*plan.reasons, f"times are not estimated: {error}")
        return plan.model_copy(update={"reasons": reasons})
    found = evaluate(problem, plan, hardware)
    estimate = _step_estimate(problem, plan, found, hardware).model_copy(
        update={"pipeline_fusions": pipeline_fusions(problem, plan, hardware)}
    )
    return plan.model_copy(update={"estimate": estimate})


def _step_estimate(
    problem: PlanningProblem, plan: Plan, found: Estimate, hardware: Mapping[str, Hardware]
) -> StepEstimate:
    return StepEstimate(
        hardware={pool: each.name for pool, each in hardware.items()},
        is_measured=problem.profile is not None,
        prompt_tokens=problem.workload.expected_prompt_tokens,
        response_tokens=problem.workload.expected_response_tokens,
        step_seconds=found.step_seconds,
        tokens_per_step=found.tokens_per_step,
        idle_share=_idle_share(found, plan.num_devices),
        calls=tuple(
            CallEstimate(
                call=call,
                seconds=seconds.total,
                late_seconds=found.late_seconds.get(call),
                bottleneck=seconds.bottleneck,
            )
            for call, seconds in found.calls.items()
        ),
    )


def _idle_share(found: Estimate, num_devices: int) -> float:
    """Of the time of all devices, those among them on which nothing runs."""
    busy = sum(use.busy_share * use.group.num_ranks for use in found.uses)
    return max(0.0, 1.0 - busy / num_devices)
