"""How a job may compute within its devices' memory: micro-batches of which size, activations that
are kept or computed again, roles that stay or leave. Pure.

What a manifest says stays as it is; for the rest the choices are in the order of the time that they
take (docs/adr/0022-plans-trade-time-for-memory.md).
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

SMALLEST_MICRO_BATCH_TOKENS = 1024
"""Down to which the default is halved where memory is short."""

CHEAP_MICRO_BATCH_TOKENS: Mapping[Device, int] = {Device.CPU: 1024, Device.GPU: 4096}
"""Down to which smaller micro-batches take less time than recomputation, a third more of it. On
GPUs layers are gathered for each of them: at 4096 tokens in about half the time of the computation
beside which that runs, at 2048 in all of it. CPUs compute slowly enough for any."""


@dataclass(frozen=True)
class MemoryChoice:
    """One way to compute."""

    micro_batch_tokens: Mapping[str, int]
    """Of each role, where the manifest does not say it."""
    recomputed: frozenset[str]
    """Trained roles whose activations are computed again for the backward pass."""
    forced_recompute: frozenset[str]
    """Those of them whose manifest says so."""
    offload: OffloadChoice
    """Which roles leave their devices."""

    @property
    def chosen_to_recompute(self) -> frozenset[str]:
        """Those whose manifest leaves it to the plan."""
        return self.recomputed - self.forced_recompute


def memory_choices(problem: PlanningProblem, groups: Sequence[DeviceGroup]) -> list[MemoryChoice]:
    """All ways to compute, that which takes least time first, that which takes least memory last.

    Args:
        problem: what is planned.
        groups: all devices.
    """
    offloads = offload_choices(problem, groups)
    without_copies = [each for each in offloads if not each.chosen_to_copy]
    with_copies = [each for each in offloads if each.chosen_to_copy]
    told = forced_recompute(problem)
    return [
        MemoryChoice(dict.fromkeys(problem.models, tokens), recomputed, told, offload)
        for of_a_kind in (without_copies, with_copies)
        for tokens, recomputed in _steps(problem)
        for offload in of_a_kind
    ]


def tried(choice: MemoryChoice) -> list[str]:
    """A line on what a plan has tried before it gives up; none if it had no choice."""
    parts = []
    if choice.chosen_to_recompute:
        parts.append(f"activations of {', '.join(sorted(choice.chosen_to_recompute))} recomputed")
    least = min(choice.micro_batch_tokens.values())
    if least == SMALLEST_MICRO_BATCH_TOKENS:
        parts.append(f"micro-batches of {least} tokens")
    if freed := choice.offload.chosen_to_copy:
        parts.append(f"{', '.join(sorted(freed))} offloaded while others work")
    return [f"(with what the plan may do itself: {'; '.join(parts)})"] if parts else []


def _steps(problem: PlanningProblem) -> Iterator[tuple[int, frozenset[str]]]:
    """Tokens of a micro-batch with the roles that recompute: first none that need not, with
    micro-batches down to where they become dear; then all that may."""
    told, may = forced_recompute(problem), _may_recompute(problem)
    sizes = micro_batch_sizes(problem)
    for tokens in sizes:
        if may == told or tokens >= CHEAP_MICRO_BATCH_TOKENS[problem.device]:
            yield tokens, told
    if may != told:
        for tokens in sizes:
            yield tokens, may


def forced_recompute(problem: PlanningProblem) -> frozenset[str]:
    """Trained roles that recompute as their manifest says."""
    return _recomputing(problem, (True,))


def _may_recompute(problem: PlanningProblem) -> frozenset[str]:
    """These, and those whose manifest leaves it to the plan."""
    return _recomputing(problem, (True, None))


def _recomputing(problem: PlanningProblem, wanted: Sequence[bool | None]) -> frozenset[str]:
    return frozenset(
        role
        for role, facts in problem.models.items()
        if facts.is_trained and facts.fixed.recompute in wanted
    )


def micro_batch_sizes(problem: PlanningProblem) -> list[int]:
    """What training.microBatchTokens may be where the manifest leaves it out, largest first; one
    where it is given for every role."""
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
    """That micro-batches are smaller than they would be with more memory, and whose activations are
    computed again.

    Args:
        problem: what is planned.
        models: of the roles.
        choice: what was chosen.
        is_chosen: whether it was chosen by time, and not as the first that fits.
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
