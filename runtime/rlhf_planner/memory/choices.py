"""Choices that trade time for memory. Pure.

These are the size of micro-batches, recomputation of activations and offloading of roles. The
manifest may fix some of them. The others are tried in the order of their cost in time
(docs/adr/0022-plans-trade-time-for-memory.md).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from rlhf_api.spec.resources import Device
from rlhf_planner.memory.items import RoleModel
from rlhf_planner.memory.offloading import FASTEST, OffloadChoice, offload_choices
from rlhf_planner.memory.roles import MICRO_BATCH_TOKENS
from rlhf_planner.placement.placement import DeviceGroup
from rlhf_planner.problem.problem import PlanningProblem

# The default is halved down to this size when memory is short.
SMALLEST_MICRO_BATCH_TOKENS = 1024

# Down to this size smaller micro-batches cost less time than recomputation, which adds a third. On
# GPUs layers are gathered per micro-batch: at 4096 tokens that takes half the time of the
# computation that hides it, at 2048 all of it. CPUs compute slowly enough for any size.
CHEAP_MICRO_BATCH_TOKENS: Mapping[Device, int] = {Device.CPU: 1024, Device.GPU: 4096}


@dataclass(frozen=True)
class MemoryChoice:
    """Settings with which roles compute within memory."""

    micro_batch_tokens: Mapping[str, int]
    """Tokens of a micro-batch of each role, unless the manifest fixes them."""
    recomputed: frozenset[str]
    """Trained roles whose activations are computed again in the backward pass."""
    forced_recompute: frozenset[str]
    """Roles whose manifest demands recomputation."""
    offload: OffloadChoice
    """Roles that leave their devices."""

    @property
    def chosen_to_recompute(self) -> frozenset[str]:
        """Roles that recompute by choice of the plan."""
        return self.recomputed - self.forced_recompute


def memory_choices(problem: PlanningProblem, groups: Sequence[DeviceGroup]) -> list[MemoryChoice]:
    """All choices, fastest first by rule; the last needs the least memory.

    Args:
        problem: the planning problem.
        groups: all devices.
    """
    offloads = offload_choices(problem, groups)
    without_copies = [
        offload_choice for offload_choice in offloads if not offload_choice.chosen_to_copy
    ]
    with_copies = [offload_choice for offload_choice in offloads if offload_choice.chosen_to_copy]
    forced = forced_recompute(problem)
    return [
        MemoryChoice(dict.fromkeys(problem.models, tokens), recomputed, forced, offload)
        # Copies to the host cost more than anything else, so they come last.
        for offloads_of_kind in (without_copies, with_copies)
        for tokens, recomputed in _steps(problem)
        for offload in offloads_of_kind
    ]


def tried(choice: MemoryChoice) -> list[str]:
    """Describe the last choice before a refusal in one line; no line if nothing was free."""
    parts = []
    if choice.chosen_to_recompute:
        parts.append(f"activations of {', '.join(sorted(choice.chosen_to_recompute))} recomputed")
    smallest = min(choice.micro_batch_tokens.values())
    if smallest == SMALLEST_MICRO_BATCH_TOKENS:
        parts.append(f"micro-batches of {smallest} tokens")
    if freed := choice.offload.chosen_to_copy:
        parts.append(f"{', '.join(sorted(freed))} offloaded while others work")
    return [f"(with what the plan may do itself: {'; '.join(parts)})"] if parts else []


def _steps(problem: PlanningProblem) -> Iterator[tuple[int, frozenset[str]]]:
    """Sizes of micro-batches with the roles that recompute, fastest first by rule."""
    forced, optional_and_forced = forced_recompute(problem), _may_recompute(problem)
    sizes = micro_batch_sizes(problem)
    # Without optional recomputation only down to the sizes that cost less time than it does.
    for tokens in sizes:
        if optional_and_forced == forced or tokens >= CHEAP_MICRO_BATCH_TOKENS[problem.device]:
            yield tokens, forced
    if optional_and_forced != forced:
        for tokens in sizes:
            yield tokens, optional_and_forced


def forced_recompute(problem: PlanningProblem) -> frozenset[str]:
    """Trained roles whose manifest demands recomputation."""
    return _recomputing(problem, (True,))


def _may_recompute(problem: PlanningProblem) -> frozenset[str]:
    """Trained roles that recompute by demand, or may by choice of the plan."""
    return _recomputing(problem, (True, None))


def _recomputing(problem: PlanningProblem, values: Sequence[bool | None]) -> frozenset[str]:
    return frozenset(
        role
        for role, facts in problem.models.items()
        if facts.is_trained and facts.fixed.recompute in values
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
    problem: PlanningProblem,
    models: Sequence[RoleModel],
    choice: MemoryChoice,
    is_chosen: bool = False,
) -> tuple[str, ...]:
    """Sentences about smaller micro-batches and recomputed activations.

    Args:
        problem: the planning problem.
        models: of the roles.
        choice: the chosen one.
        is_chosen: True if it was chosen by time, False for the first feasible one.
    """
    smaller = _smaller(problem, models, choice, is_chosen)
    return tuple([*smaller, *_recomputation(choice, is_chosen)])


def _smaller(
    problem: PlanningProblem, models: Sequence[RoleModel], choice: MemoryChoice, is_chosen: bool
) -> Iterator[str]:
    best = max(MICRO_BATCH_TOKENS[model.device] for model in models)
    why = f"the most, of {best} halved again and again, with which everything fits"
    smaller: dict[int, list[str]] = {}
    for model in models:
        tokens = choice.micro_batch_tokens[model.role]
        is_open = problem.models[model.role].fixed.micro_batch_tokens is None
        if is_open and tokens < MICRO_BATCH_TOKENS[model.device]:
            smaller.setdefault(tokens, []).append(model.role)
    for tokens, roles in smaller.items():
        yield (
            f"micro-batches of {', '.join(roles)} have up to {tokens} tokens: "
            f"{FASTEST if is_chosen else why}"
        )


def _recomputation(choice: MemoryChoice, is_chosen: bool) -> Iterator[str]:
    why = "they do not fit otherwise, be it in smaller micro-batches"
    parts = (
        (choice.forced_recompute, "as training.activationRecompute says"),
        (
            choice.chosen_to_recompute,
            f"{FASTEST if is_chosen else why}; training takes about a third more computation",
        ),
    )
    for roles, why in parts:
        if roles:
            yield (
                f"activations of {', '.join(sorted(roles))} are computed again for the backward "
                f"pass: {why}"
            )
