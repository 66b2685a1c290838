"""Choices that trade time for memory. Pure.

These are the size of micro-batches, recomputation of activations and offloading of roles. The
manifest may fix some of them. The others are tried in the order of their cost in time
(docs/adr/0022-plans-trade-time-for-memory.md).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from rlhf_api.plan import OffloadDepth
from rlhf_api.spec.resources import Device
from rlhf_planner.memory.offloading import (
    FASTEST,
    copied_by_choice,
    offload_choices,
    offload_depths,
)
from rlhf_planner.memory.roles import MICRO_BATCH_TOKENS
from rlhf_planner.placement.placement import DeviceGroup
from rlhf_planner.placement.strategy import RoleStrategy
from rlhf_planner.problem.problem import PlanningProblem, RoleSpec

# The default is halved down to this size when memory is short.
SMALLEST_MICRO_BATCH_TOKENS = 1024

# Down to this size smaller micro-batches cost less time than recomputation, which adds a third. On
# GPUs layers are gathered per micro-batch: at 4096 tokens that takes half the time of the
# computation that hides it, at 2048 all of it. CPUs compute slowly enough for any size.
CHEAP_MICRO_BATCH_TOKENS: Mapping[Device, int] = {Device.CPU: 1024, Device.GPU: 4096}


# Every role with a model.
Roles = Mapping[str, RoleStrategy]


def memory_choices(
    problem: PlanningProblem, roles: Roles, groups: Sequence[DeviceGroup]
) -> list[Roles]:
    """Complete the strategies of roles in every way, fastest first by rule; the last needs the
    least memory.

    Args:
        problem: the planning problem.
        roles: with their cuts.
        groups: all devices.
    """
    offloads = offload_choices(problem, groups)
    # Copies to the host cost more than anything else, so they come last.
    by_copies = [
        [depths for depths in offloads if bool(copied_by_choice(problem, depths)) is copies]
        for copies in (False, True)
    ]
    return [
        {
            role: replace(
                strategy,
                micro_batch_tokens=problem.models[role].fixed.micro_batch_tokens or tokens,
                recompute=recomputes[role],
                offload=depths.get(role, OffloadDepth.NOTHING),
            )
            for role, strategy in roles.items()
        }
        for offloads_of_kind in by_copies
        for tokens, recomputes in _steps(problem)
        for depths in offloads_of_kind
    ]


def tried(problem: PlanningProblem, roles: Roles) -> list[str]:
    """Describe the last choice before a refusal in one line; no line if nothing was free."""
    parts = []
    if recomputing := chosen_to_recompute(problem, roles):
        parts.append(f"activations of {', '.join(recomputing)} recomputed")
    smallest = micro_batch_sizes(problem)[-1]
    if smallest == SMALLEST_MICRO_BATCH_TOKENS:
        parts.append(f"micro-batches of {smallest} tokens")
    if freed := copied_by_choice(problem, offload_depths(roles)):
        parts.append(f"{', '.join(sorted(freed))} offloaded while others work")
    return [f"(with what the plan may do itself: {'; '.join(parts)})"] if parts else []


def _steps(problem: PlanningProblem) -> Iterator[tuple[int, Mapping[str, bool]]]:
    """Sizes of micro-batches, and for each role whether it recomputes; fastest first by rule."""
    choices = {role: recompute_choices(facts) for role, facts in problem.models.items()}
    is_open = any(len(of_role) > 1 for of_role in choices.values())
    sizes = micro_batch_sizes(problem)
    # Without optional recomputation only down to the sizes that cost less time than it does.
    for tokens in sizes:
        if not is_open or tokens >= CHEAP_MICRO_BATCH_TOKENS[problem.device]:
            yield tokens, {role: of_role[0] for role, of_role in choices.items()}
    if is_open:
        for tokens in sizes:
            yield tokens, {role: of_role[-1] for role, of_role in choices.items()}


def recompute_choices(facts: RoleSpec) -> tuple[bool, ...]:
    """Allowed values of `recompute` for a role, the faster one first."""
    if facts.is_trained and facts.fixed.recompute is None:
        return False, True
    # Roles that are not trained have no backward pass.
    return (facts.is_trained and bool(facts.fixed.recompute),)


def chosen_to_recompute(problem: PlanningProblem, roles: Roles) -> list[str]:
    """Roles that recompute by choice of the plan, sorted."""
    return sorted(
        role
        for role, strategy in roles.items()
        if strategy.recompute and problem.models[role].fixed.recompute is None
    )


def micro_batch_sizes(problem: PlanningProblem) -> list[int]:
    """Possible values of training.microBatchTokens, largest first."""
    # Roles with a fixed size ignore these values: if all have one, others would only repeat it.
    best = MICRO_BATCH_TOKENS[problem.device]
    if all(facts.fixed.micro_batch_tokens for facts in problem.models.values()):
        return [best]
    halvings = (best // SMALLEST_MICRO_BATCH_TOKENS).bit_length()
    return [best >> times for times in range(halvings)]


def memory_reasons(
    problem: PlanningProblem, roles: Roles, is_chosen: bool = False
) -> tuple[str, ...]:
    """Sentences about smaller micro-batches and recomputed activations.

    Args:
        problem: the planning problem.
        roles: complete.
        is_chosen: True if it was chosen by time, False for the first feasible one.
    """
    return (*_smaller(problem, roles, is_chosen), *_recomputation(problem, roles, is_chosen))


def _smaller(problem: PlanningProblem, roles: Roles, is_chosen: bool) -> Iterator[str]:
    best = MICRO_BATCH_TOKENS[problem.device]
    why = f"the most, of {best} halved again and again, with which everything fits"
    smaller: dict[int, list[str]] = {}
    for role, facts in problem.models.items():
        tokens = roles[role].micro_batch_tokens
        if facts.fixed.micro_batch_tokens is None and tokens is not None and tokens < best:
            smaller.setdefault(tokens, []).append(role)
    for tokens, names in smaller.items():
        yield (
            f"micro-batches of {', '.join(names)} have up to {tokens} tokens: "
            f"{FASTEST if is_chosen else why}"
        )


def _recomputation(problem: PlanningProblem, roles: Roles, is_chosen: bool) -> Iterator[str]:
    why = "they do not fit otherwise, be it in smaller micro-batches"
    chosen = chosen_to_recompute(problem, roles)
    forced = sorted(
        role for role, strategy in roles.items() if strategy.recompute and role not in chosen
    )
    parts = (
        (forced, "as training.activationRecompute says"),
        (chosen, f"{FASTEST if is_chosen else why}; training takes about a third more computation"),
    )
    for names, why in parts:
        if names:
            yield (
                f"activations of {', '.join(names)} are computed again for the backward pass: {why}"
            )
