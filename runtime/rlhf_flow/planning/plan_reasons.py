"""Why a plan is as it is, one sentence for each decision. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from rlhf_api.spec.placement import PlacementType
from rlhf_flow.planning.device_groups import DeviceGroup
from rlhf_flow.planning.generation_choice import EngineChoice, GenerationChoice
from rlhf_flow.planning.generation_groups import grouping_reason
from rlhf_flow.planning.generation_loads import Loads
from rlhf_flow.planning.generation_memory import GenerationLoad, kv_bytes
from rlhf_flow.planning.offloading import FASTEST
from rlhf_flow.planning.problem import Fixed
from rlhf_flow.planning.refusal import format_bytes


def plan_reasons(
    fixed: Fixed,
    groups: Sequence[DeviceGroup],
    choices: Sequence[GenerationChoice],
    loads: Loads,
) -> tuple[str, ...]:
    """Why roles are where they are, and how they generate.

    Args:
        fixed: what is decided already.
        groups: all devices.
        choices: how roles generate on each pool.
        loads: what was asked of the engines of each role.
    """
    kind = fixed.placement.type
    reasons = [_placement_reason(group, len(groups), kind, loads) for group in groups]
    for choice in choices:
        for engine in choice.engines:
            reasons += _engine_reasons(fixed, engine, loads[engine.role])
        if choice.engines:
            reasons.append(
                "generation's weights and cache are freed while no call generates: they do not fit "
                "beside the other phases"
                if any(engine.release for engine in choice.engines)
                else f"generation's weights and cache stay: {_why_they_stay(choice)}"
            )
    return tuple(reasons)


def _why_they_stay(choice: GenerationChoice) -> str:
    if choice.release:
        return "nothing else is on the devices that generate"
    return "they fit beside all other phases"


def _held(group: DeviceGroup, engines: Collection[str]) -> list[str]:
    """What devices hold, for people: roles, without or with nothing but their generation."""
    roles = [
        f"{role} without its generation"
        if role in engines and role not in group.generating
        else role
        for role in group.roles
    ]
    return [
        *roles,
        *(f"generation of {r}" for r in group.generating if r in engines and r not in group.roles),
    ]


def _placement_reason(
    group: DeviceGroup, num_groups: int, kind: PlacementType, engines: Collection[str]
) -> str:
    if num_groups == 1:
        return f"every role is on every device of pool {group.pool.name}: calls take turns"
    held = ", ".join(_held(group, engines)) or "no role, so nothing happens there"
    why = {
        PlacementType.SPLIT: "as placement Split puts language models and scalar models apart",
        PlacementType.STANDALONE: "as placement Standalone gives each role devices of its own",
        PlacementType.AUTO: "the planner's choice",
    }
    return f"{group}: {held}, {why.get(kind, 'as placement.groups says')}"


def _engine_reasons(fixed: Fixed, engine: EngineChoice, load: GenerationLoad) -> Iterator[str]:
    yield (
        f"ranks that a generation engine of {engine.role} spans: {engine.mesh.tensor}, "
        + _size_reason(load)
    )
    if engine.mesh.tensor > 1:
        yield grouping_reason(engine.role, load.trained, engine.mesh)
    yield (
        f"its cache has {format_bytes(engine.kv_cache_bytes)} on each device: "
        + _cache_reason(fixed, engine, load)
    )


def _size_reason(load: GenerationLoad) -> str:
    """Why engines span as many ranks."""
    if load.is_chosen:
        return FASTEST
    if load.tensor:
        return f"as {load.tensor_field} says"
    return "the smallest power of two with which everything fits"


def _cache_reason(fixed: Fixed, engine: EngineChoice, load: GenerationLoad) -> str:
    """Why a role's cache has its size."""
    if fixed.kv_cache_bytes is not None:
        return "rollout.kvCacheMemory says so"
    sequences = load.sequences(engine.mesh.data)
    which = (
        "as many as rollout.maxConcurrentSequences"
        if sequences == load.max_concurrent_sequences
        else "as many as an engine gets at once"
    )
    needed = kv_bytes(load, engine.mesh.tensor, sequences)
    if engine.kv_cache_bytes >= needed:
        return f"all that {sequences} longest sequences need, {which}"
    return (
        f"what is left over while generation holds its memory; {sequences} longest sequences, "
        f"{which}, would need {format_bytes(needed)}"
    )
