"""Generation on a pool: ranks per engine, size of the cache, release of memory.

An engine's ranks must divide the devices, the nodes and the model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from rlhf_api.mesh import Mesh
from rlhf_api.plan import Pool
from rlhf_api.plan_text import format_bytes
from rlhf_api.spec.resources import Device
from rlhf_flow.errors import DoesNotDivide, DoesNotFit, KvCacheTooSmall
from rlhf_planner.memory.engine_groups import TrainedModel, can_group, engine_meshes
from rlhf_planner.memory.generation import (
    GenerationChoice,
    Loads,
    generation_items,
    kv_bytes,
    sending_items,
)
from rlhf_planner.memory.role_model import overflow_message
from rlhf_planner.placement.parallelism import engine_size_field
from rlhf_planner.placement.placement import GroupMemory
from rlhf_planner.placement.strategy import EngineStrategy
from rlhf_planner.problem.problem import Constraints
from rlhf_sizing.shape import DecoderShape
from rlhf_sizing.weights import padded_vocabulary


def _sized(
    fixed: Constraints, pool: Pool, loads: Loads, engines: Mapping[str, EngineStrategy]
) -> list[dict[str, EngineStrategy]]:
    """The engines of a pool in every possible size, smallest first; arguments and errors as for
    `choose_generation`."""
    given = {role: engines[role].tensor or fixed.engine_tensor for role in loads}
    for role, tensor in given.items():
        if tensor is not None:
            _check_size(fixed, pool, loads[role].shape, engines[role], tensor)
    # Roles in one process share its groups, so their free sizes are equal.
    free = [
        possible_sizes(pool, engines[role].devices, loads[role].shape)
        for role, tensor in given.items()
        if tensor is None
    ]
    sizes = [size for size in _sizes(pool) if all(size in of_role for of_role in free)]
    return [
        {role: replace(engines[role], tensor=tensor or size) for role, tensor in given.items()}
        # Without a free size one value is enough.
        for size in (sizes if free else sizes[:1])
    ]


def _check_size(
    fixed: Constraints, pool: Pool, shape: DecoderShape, engines: EngineStrategy, tensor: int
) -> None:
    """Refuse a size of engines that does not divide their devices, a node or the model."""
    obstacle = _obstacle(tensor, pool, engines.devices, shape)
    if obstacle is not None:
        field = engine_size_field(fixed, engines) or "rollout.parallelism.tensor"
        usable = possible_sizes(pool, engines.devices, shape)
        raise DoesNotDivide(
            f"{field} cannot be {tensor}: got {obstacle}; choose "
            f"{' or '.join(map(str, usable)) or 'other devices'}, or leave it out and the "
            "planner chooses"
        ).at("spec", *_location(field))


def _location(field: str) -> list[str | int]:
    """The location of a field in the manifest, from its name: `placement.groups[0].tensor`."""
    names = field.replace("[", ".").replace("]", "").split(".")
    return [int(name) if name.isdigit() else name for name in names]


def possible_sizes(pool: Pool, mesh: Mesh, shape: DecoderShape) -> tuple[int, ...]:
    """Possible ranks per engine of a model on devices of a pool. Ascending."""
    return tuple(size for size in _sizes(pool) if is_possible(size, pool, mesh, shape))


def is_possible(tensor: int, pool: Pool, mesh: Mesh, shape: DecoderShape) -> bool:
    """True if an engine of a model may span `tensor` ranks on devices of a pool."""
    return _obstacle(tensor, pool, mesh, shape) is None


def _sizes(pool: Pool) -> range:
    return range(1, pool.devices_per_node + 1)


def _obstacle(tensor: int, pool: Pool, mesh: Mesh, shape: DecoderShape) -> str | None:
    return _device_obstacle(tensor, pool, mesh) or _shape_obstacle(tensor, shape)


def _device_obstacle(tensor: int, pool: Pool, mesh: Mesh) -> str | None:
    """The devices or nodes that a size does not divide, in words."""
    if mesh.num_devices % tensor:
        return f"{mesh.num_devices} devices that generate, allowed one of its divisors"
    if not can_group(mesh, tensor, pool.devices_per_node):
        return (
            f"{pool.devices_per_node} devices per node, and ranks {mesh.ranks.start} to "
            f"{mesh.ranks.stop - 1} that generate, allowed a size of which all engines lie within "
            "nodes"
        )
    return None


def _shape_obstacle(tensor: int, shape: DecoderShape) -> str | None:
    kv_heads = shape.num_key_value_heads
    if shape.num_attention_heads % tensor:
        return f"{shape.num_attention_heads} attention heads, allowed one of its divisors"
    if kv_heads % tensor and tensor % kv_heads:
        return f"{kv_heads} key and value heads, allowed one of its divisors or multiples"
    if shape.intermediate_size % tensor:
        return f"intermediate size {shape.intermediate_size}, allowed one of its divisors"
    if (padded := padded_vocabulary(shape.vocab_size, 1)) % tensor:
        return (
            f"a vocabulary of {shape.vocab_size}, which vLLM pads to {padded}, allowed one of its "
            "divisors"
        )
    return None


def choose_generation(
    fixed: Constraints,
    pool: Pool,
    loads: Loads,
    engines: Mapping[str, EngineStrategy],
    static: tuple[GroupMemory, ...],
) -> GenerationChoice:
    """Choose the smallest engines that fit, with their memory resident if possible.

    Args:
        fixed: constraints of the manifest.
        pool: the devices.
        loads: of the engines there; empty if nothing generates.
        engines: of all roles that generate, open but for their devices and fixed sizes.
        static: all memory of the pool's devices but that of generation.

    Raises:
        DoesNotDivide: a fixed size of engines that does not divide.
        KvCacheTooSmall: a fixed cache below one longest sequence.
        DoesNotFit: nothing fits.
    """
    sizes = _sized(fixed, pool, loads, engines)
    tried: list[GenerationChoice] = []
    for sized in sizes:
        for choice in _choices(fixed, loads, sized, static):
            if choice.fits:
                return choice
            # Kept for the message: the one that comes closest is shown.
            tried.append(choice)
    # Without choices the fixed cache was too small for every size of engines.
    if not tried:
        largest = {role: engine.mesh.tensor for role, engine in sizes[-1].items()}
        min_bytes, tensor = max(
            (kv_bytes(loads[role], tensor, 1), tensor) for role, tensor in largest.items()
        )
        raise KvCacheTooSmall(
            f"rollout.kvCacheMemory is below one longest sequence: got "
            f"{fixed.kv_cache_memory}, allowed at least {format_bytes(min_bytes)} on each "
            f"device with engines of {tensor}; raise it, or lower rollout.maxPromptTokens or "
            "maxResponseTokens"
        ).at("spec", "rollout", "kvCacheMemory")
    # Of equals the last: it has the largest engines.
    raise DoesNotFit(_overflow(min(tried[::-1], key=lambda choice_: choice_.fullest.excess_bytes)))


def _overflow(choice: GenerationChoice) -> str:
    group = choice.fullest.group
    pool = group.pool
    devices = f"{pool.num_devices} {pool.device.value} devices"
    if group.num_devices < pool.num_devices:
        devices = f"{group}, which has {devices}"
    engines = [
        f"{role}'s engines of {engine.tensor} with a cache of "
        f"{format_bytes(engine.kv_cache_bytes or 0)}"
        for role, engine in choice.engines.items()
        if role in group.generating
    ]
    released = ["generation memory released during training"] if engines and group.roles else []
    setting = ", ".join([devices, *engines, *released])
    return overflow_message(choice.fullest.items, pool.memory_bytes_per_device, setting)


def with_groups(choice: GenerationChoice, loads: Loads, devices_per_node: int) -> GenerationChoice:
    """Choose the ranks of each engine so that the fewest weights are sent.

    Args:
        choice: of a pool.
        loads: of the roles that generate there.
        devices_per_node: of the pool.
    """
    by_size: dict[int, dict[str, TrainedModel]] = {}
    for role, engine in choice.engines.items():
        by_size.setdefault(engine.mesh.tensor, {})[role] = loads[role].trained
    meshes: dict[str, Mesh] = {}
    for size, models in by_size.items():
        meshes |= engine_meshes(models, size, devices_per_node)
    engines = {
        role: replace(engine, tensor_stride=meshes[role].tensor_stride)
        for role, engine in choice.engines.items()
    }
    return replace(choice, engines=engines)


def _choices(
    fixed: Constraints,
    loads: Loads,
    sized: Mapping[str, EngineStrategy],
    static: tuple[GroupMemory, ...],
) -> Iterator[GenerationChoice]:
    """Choices with engines of some sizes, best first; none if a fixed cache is too small."""

    def choice(caches: Mapping[str, int], *, release: bool, packs: bool) -> GenerationChoice:
        # On devices without other roles there is nothing to release memory for.
        engines = {
            role: replace(
                engine,
                kv_cache_bytes=caches[role],
                release=release and not _is_alone(role, static),
                packs_weights=packs,
            )
            for role, engine in sized.items()
        }
        memory = tuple(_with_engines(group_memory, loads, engines) for group_memory in static)
        return GenerationChoice(engines, release, memory)

    min_cache = {role: kv_bytes(load, sized[role].mesh.tensor, 1) for role, load in loads.items()}
    caches = {
        role: kv_bytes(load, sized[role].mesh.tensor, load.sequences(sized[role].mesh.data))
        for role, load in loads.items()
    }
    fixed_bytes = fixed.kv_cache_bytes
    if fixed_bytes is not None:
        if any(fixed_bytes < needed for needed in min_cache.values()):
            return
        caches = dict.fromkeys(loads, fixed_bytes)
    can_pack = any(load.device is Device.CPU for load in loads.values())
    if can_pack:
        yield choice(caches, release=False, packs=True)
    yield choice(caches, release=False, packs=False)
    if can_pack:
        yield choice(caches, release=True, packs=True)
    if fixed_bytes is None:
        # The cache gets what is left with weights and cache released outside of generation.
        empty = choice(dict.fromkeys(loads, 0), release=True, packs=False)
        caches = {
            role: max(min_cache[role], min(caches[role], empty.spare_bytes(role))) for role in loads
        }
    yield choice(caches, release=True, packs=False)


def _is_alone(role: str, static: Sequence[GroupMemory]) -> bool:
    """True if a role generates on devices without any other role."""
    groups = [
        group_memory.group for group_memory in static if role in group_memory.group.generating
    ]
    return all(not group.roles and group.generating == (role,) for group in groups)


def _with_engines(
    static: GroupMemory, loads: Loads, engines: Mapping[str, EngineStrategy]
) -> GroupMemory:
    items, phases = static.items, static.phases
    for role, engine in engines.items():
        load, tensor = loads[role], engine.mesh.tensor
        if role in static.group.generating:
            items += generation_items(
                load,
                role=role,
                tensor=tensor,
                kv_cache_bytes=engine.kv_cache_bytes or 0,
                phases=phases,
                release=bool(engine.release),
                packs_weights=bool(engine.packs_weights),
            )
        elif role in static.group.roles:
            items += sending_items(load, role=role, tensor=tensor, phases=phases)
    return GroupMemory(static.group, static.phases, items)
