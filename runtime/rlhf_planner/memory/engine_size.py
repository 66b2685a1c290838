"""How many ranks a generation engine may span: what divides devices, nodes and models.

How roles generate on a pool: ranks per engine, size of the cache, release of memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from rlhf_api.plan import Mesh, Pool
from rlhf_api.plan_text import format_bytes
from rlhf_flow.errors import DoesNotDivide, DoesNotFit, KvCacheTooSmall
from rlhf_planner.memory.engine_groups import TrainedModel, can_group, engine_meshes
from rlhf_planner.memory.generation import (
    EngineChoice,
    GenerationChoice,
    GenerationLoad,
    Loads,
    generation_items,
    kv_bytes,
    sending_items,
)
from rlhf_planner.memory.items import overflow_message
from rlhf_planner.placement.placement import GroupMemory
from rlhf_planner.problem.problem import Constraints
from rlhf_sizing.shape import DecoderShape
from rlhf_sizing.weights import padded_vocabulary


def engine_sizes(pool: Pool, loads: Sequence[GenerationLoad]) -> tuple[int, ...]:
    """Ranks that an engine may span, of all roles for which that is not decided: those of a process
    share its groups. Ascending.

    Args:
        pool: the devices.
        loads: of the roles that generate there.

    Raises:
        DoesNotDivide: a size that is decided and does not divide.
    """
    for load in loads:
        if load.tensor and (
            problem := _does_not_divide(load.tensor, pool, load.trained.generating, load.shape)
        ):
            mesh, shape = load.trained.generating, load.shape
            sizes = range(1, 1 + pool.devices_per_node)
            usable = [size for size in sizes if not _does_not_divide(size, pool, mesh, shape)]
            raise DoesNotDivide(
                f"{load.tensor_field} cannot be {load.tensor}: got {problem}; choose "
                f"{' or '.join(map(str, usable)) or 'other devices'}, or leave it out and the "
                "planner chooses"
            ).at("spec", *_location(load.tensor_field))
    free = [load for load in loads if load.tensor is None]
    if loads and not free:
        return (1,)
    possible = [possible_sizes(pool, load.trained.generating, load.shape) for load in free]
    return tuple(size for size in _powers(pool) if all(size in sizes for sizes in possible))


def _location(field: str) -> list[str | int]:
    """Where a field of the manifest is, from its name: `placement.groups[0].tensor`."""
    names = field.replace("[", ".").replace("]", "").split(".")
    return [int(name) if name.isdigit() else name for name in names]


def possible_sizes(pool: Pool, mesh: Mesh, shape: DecoderShape) -> tuple[int, ...]:
    """Ranks that an engine of a model may span on some devices of a pool. Ascending."""
    return tuple(size for size in _powers(pool) if is_possible(size, pool, mesh, shape))


def is_possible(tensor: int, pool: Pool, mesh: Mesh, shape: DecoderShape) -> bool:
    """Whether an engine of a model may span so many ranks on some devices of a pool."""
    return _does_not_divide(tensor, pool, mesh, shape) is None


def _powers(pool: Pool) -> list[int]:
    return [2**k for k in range(pool.devices_per_node.bit_length())]


def _does_not_divide(tensor: int, pool: Pool, mesh: Mesh, shape: DecoderShape) -> str | None:
    return _not_aligned(tensor, pool, mesh) or _not_cut(tensor, shape)


def _not_aligned(tensor: int, pool: Pool, mesh: Mesh) -> str | None:
    """Every rank is in one engine, whose ranks share a node."""
    if mesh.num_devices % tensor:
        return f"{mesh.num_devices} devices that generate, allowed one of its divisors"
    if not can_group(mesh, tensor, pool.devices_per_node):
        return (
            f"{pool.devices_per_node} devices per node, and ranks {mesh.ranks.start} to "
            f"{mesh.ranks.stop - 1} that generate, allowed a size of which all engines lie within "
            "nodes"
        )
    return None


def _not_cut(tensor: int, shape: DecoderShape) -> str | None:
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
    fixed: Constraints, pool: Pool, loads: Loads, static: tuple[GroupMemory, ...]
) -> GenerationChoice:
    """The first way to generate that fits: the smallest engines, memory kept where it can be.

    Args:
        fixed: what is decided already.
        pool: the devices.
        loads: what is asked of the engines there; of none where nothing generates.
        static: all memory of the pool's devices but that of generation.

    Raises:
        DoesNotDivide: a given tensor parallelism that does not divide.
        KvCacheTooSmall: a given cache below one longest sequence.
        DoesNotFit: no way fits.
    """
    sizes = engine_sizes(pool, tuple(loads.values()))
    tried: list[GenerationChoice] = []
    for tensor in sizes:
        meshes = {role: _neighbours(load, load.tensor or tensor) for role, load in loads.items()}
        for choice in _choices(fixed, loads, meshes, static):
            if choice.fits:
                return choice
            tried.append(choice)
    if not tried:
        least, tensor = max(
            (kv_bytes(load, tensor, 1), tensor)
            for load in loads.values()
            for tensor in [load.tensor or sizes[-1]]
        )
        raise KvCacheTooSmall(
            f"rollout.kvCacheMemory is below one longest sequence: got "
            f"{fixed.kv_cache_memory}, allowed at least {format_bytes(least)} on each "
            f"device with engines of {tensor}; raise it, or lower rollout.maxPromptTokens or "
            "maxResponseTokens"
        ).at("spec", "rollout", "kvCacheMemory")
    raise DoesNotFit(_overflow(min(tried[::-1], key=lambda each: each.fullest.excess_bytes)))


def _overflow(choice: GenerationChoice) -> str:
    group = choice.fullest.group
    pool = group.pool
    devices = f"{pool.num_devices} {pool.device.value} devices"
    if group.num_devices < pool.num_devices:
        devices = f"{group}, which has {devices}"
    engines = [
        f"{engine.role}'s engines of {engine.mesh.tensor} with a cache of "
        f"{format_bytes(engine.kv_cache_bytes)}"
        for engine in choice.engines
        if engine.role in group.generating
    ]
    released = ["generation memory released during training"] if engines and group.roles else []
    setting = ", ".join([devices, *engines, *released])
    return overflow_message(choice.fullest.items, pool.memory_bytes_per_device, setting)


def _neighbours(load: GenerationLoad, tensor: int) -> Mesh:
    """Engines of neighbouring ranks: memory does not depend on which ranks are one together."""
    ranks = load.trained.generating
    return Mesh(
        pool=ranks.pool,
        first_rank=ranks.first_rank,
        data=ranks.num_devices // tensor,
        tensor=tensor,
    )


def with_groups(choice: GenerationChoice, loads: Loads, devices_per_node: int) -> GenerationChoice:
    """A choice with engines of those ranks to which fewest weights must be sent.

    Args:
        choice: of a pool.
        loads: of the roles that generate there.
        devices_per_node: of the pool.
    """
    by_size: dict[int, dict[str, TrainedModel]] = {}
    for engine in choice.engines:
        by_size.setdefault(engine.mesh.tensor, {})[engine.role] = loads[engine.role].trained
    meshes: dict[str, Mesh] = {}
    for size, models in by_size.items():
        meshes |= engine_meshes(models, size, devices_per_node)
    engines = tuple(replace(engine, mesh=meshes[engine.role]) for engine in choice.engines)
    return replace(choice, engines=engines)


def _choices(
    fixed: Constraints, loads: Loads, meshes: Mapping[str, Mesh], static: tuple[GroupMemory, ...]
) -> Iterator[GenerationChoice]:
    """Ways to generate with engines on some meshes, best first; none where a given cache is too
    small."""

    def choice(caches: Mapping[str, int], release: bool) -> GenerationChoice:
        engines = tuple(
            EngineChoice(role, meshes[role], caches[role], release and not _is_alone(role, static))
            for role in loads
        )
        memory = tuple(_with_engines(each, loads, engines) for each in static)
        return GenerationChoice(engines, release, memory)

    least = {role: kv_bytes(load, meshes[role].tensor, 1) for role, load in loads.items()}
    most = {
        role: kv_bytes(load, meshes[role].tensor, load.sequences(meshes[role].data))
        for role, load in loads.items()
    }
    given = fixed.kv_cache_bytes
    if given is not None:
        if all(given >= needed for needed in least.values()):
            yield choice(dict.fromkeys(loads, given), False)
            yield choice(dict.fromkeys(loads, given), True)
        return
    yield choice(most, False)
    empty = choice(dict.fromkeys(loads, 0), True)
    spare = {role: empty.spare_bytes(role) for role in loads}
    yield choice({role: max(least[role], min(most[role], spare[role])) for role in loads}, True)


def _is_alone(role: str, static: Sequence[GroupMemory]) -> bool:
    """Whether nothing else is on the devices on which a role generates."""
    groups = [each.group for each in static if role in each.group.generating]
    return all(not group.roles and group.generating == (role,) for group in groups)


def _with_engines(
    static: GroupMemory, loads: Loads, engines: Sequence[EngineChoice]
) -> GroupMemory:
    items, phases = static.items, static.phases
    for engine in engines:
        role, load, tensor = engine.role, loads[engine.role], engine.mesh.tensor
        if role in static.group.generating:
            items += generation_items(
                load,
                role=role,
                tensor=tensor,
                kv_cache_bytes=engine.kv_cache_bytes,
                phases=phases,
                release=engine.release,
            )
        elif role in static.group.roles:
            items += sending_items(load, role=role, tensor=tensor, phases=phases)
    return GroupMemory(static.group, static.phases, items)
