"""How roles generate on a pool: ranks per engine, size of the cache, release of memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from rlhf_api import RLHFJob
from rlhf_api.plan import CallKind, GraphName, Mesh, phase_name
from rlhf_api.plan_memory import MemoryItem, sum_by_phase
from rlhf_api.quantity import whole
from rlhf_flow.errors import DoesNotDivide, DoesNotFit, KvCacheTooSmall
from rlhf_flow.graph import Graph
from rlhf_flow.planning.device_groups import DeviceGroup
from rlhf_flow.planning.generation_groups import TrainedModel, can_group, engine_meshes
from rlhf_flow.planning.generation_memory import (
    GenerationCall,
    GenerationLoad,
    generation_items,
    kv_bytes,
    sending_items,
)
from rlhf_flow.planning.inventory import DeviceInventory
from rlhf_flow.planning.memory import RoleModel
from rlhf_flow.planning.placement import RolePlace
from rlhf_flow.planning.refusal import format_bytes, overflow_message
from rlhf_flow.planning.shapes import DecoderShape
from rlhf_flow.planning.weight_parts import padded_vocabulary


@dataclass(frozen=True)
class EngineChoice:
    """The engines of one role."""

    role: str
    mesh: Mesh
    """Their ranks: an engine spans its tensor axis."""
    kv_cache_bytes: int
    """On each device."""
    release: bool
    """Whether its weights and cache are freed while no call generates."""


@dataclass(frozen=True)
class GroupMemory:
    """A group of devices, and what memory is used for on each of them."""

    group: DeviceGroup
    phases: tuple[str, ...]
    """In which its memory differs."""
    items: tuple[MemoryItem, ...]

    @property
    def peak_bytes(self) -> int:
        """The highest sum of all phases."""
        return max(sum_by_phase(self.items).values())

    @property
    def excess_bytes(self) -> int:
        """How much that is more than a device has; negative where it fits."""
        return self.peak_bytes - self.group.pool.memory_bytes_per_device

    def held_peak(self, role: str, release: bool) -> int:
        """Bytes in the fuller of the phases of generation that hold a role's cache: while its
        weights arrive only where it is not given back."""
        sums = sum_by_phase(self.items)
        kinds = (CallKind.GENERATE,) if release else (CallKind.RESHARD, CallKind.GENERATE)
        return max(sums[phase_name(role, kind)] for kind in kinds)


@dataclass(frozen=True)
class GenerationChoice:
    """One way to generate on a pool, and what memory then holds."""

    engines: tuple[EngineChoice, ...]
    """Of each role that generates there."""
    release: bool
    """Whether weights and caches are freed while no call generates, where others use the device."""
    memory: tuple[GroupMemory, ...]
    """Of each group of the pool's devices, generation's items among them."""

    @property
    def fits(self) -> bool:
        """Whether no device has too little memory."""
        return self.fullest.excess_bytes <= 0

    @property
    def fullest(self) -> GroupMemory:
        """The group that has the least left."""
        return max(self.memory, key=lambda each: each.excess_bytes)

    def spare_bytes(self, role: str) -> int:
        """What is left on the fullest device that holds a role's cache."""
        (engine,) = (each for each in self.engines if each.role == role)
        return min(
            each.group.pool.memory_bytes_per_device - each.held_peak(role, engine.release)
            for each in self.memory
            if role in each.group.generating
        )


Loads = Mapping[str, GenerationLoad]
"""What each role that generates asks of its engines."""


def generation_loads(
    job: RLHFJob,
    graphs: Mapping[GraphName, Graph],
    pool: DeviceInventory,
    models: Sequence[RoleModel],
    places: Mapping[str, RolePlace],
) -> Loads:
    """What the job asks of the engines of each role that generates on a pool."""
    return {
        model.role: GenerationLoad(
            shape=model.shape,
            mesh=model.mesh,
            device=pool.device,
            number_bytes=model.compute_bytes,
            max_prompt_tokens=job.spec.rollout.max_prompt_tokens,
            max_response_tokens=job.spec.rollout.max_response_tokens,
            max_concurrent_sequences=job.spec.rollout.max_concurrent_sequences,
            calls=_calls_of(job, graphs, model.role),
            engine=model.engine,
            elsewhere=None if place.mesh.ranks == model.mesh.ranks else place.mesh,
            tensor=place.tensor or job.spec.rollout.parallelism.tensor,
            tensor_field=f"{place.field}.tensor" if place.tensor else "rollout.parallelism.tensor",
        )
        for model in models
        if model.generates and model.mesh.pool == pool.pool
        for place in [places[model.role].generation]
    }


def _calls_of(
    job: RLHFJob, graphs: Mapping[GraphName, Graph], role: str
) -> tuple[GenerationCall, ...]:
    """The calls of a role that generate, as far as it is known of how many prompts they are: of
    held-out ones only where their number has a limit."""
    held_out = job.spec.data.evaluation
    prompts = {
        GraphName.STEP: job.spec.schedule.prompts_per_step,
        GraphName.EVALUATION: None if held_out is None else held_out.max_rows,
    }
    return tuple(
        GenerationCall(count, graph.rows[call.id].most)
        for name, graph in graphs.items()
        for call in graph.of_kind(CallKind.GENERATE)
        if call.role == role and (count := prompts.get(name)) is not None
    )


def choose_generation(
    job: RLHFJob, pool: DeviceInventory, loads: Loads, static: tuple[GroupMemory, ...]
) -> GenerationChoice:
    """The first way to generate that fits: the smallest engines, memory kept where it can be.

    Args:
        job: the manifest.
        pool: the devices.
        loads: what is asked of the engines there; of none where nothing generates.
        static: all memory of the pool's devices but that of generation.

    Raises:
        DoesNotDivide: a given tensor parallelism that does not divide.
        KvCacheTooSmall: a given cache below one longest sequence.
        DoesNotFit: no way fits.
    """
    sizes = _tensor_sizes(pool, tuple(loads.values()))
    tried: list[GenerationChoice] = []
    for tensor in sizes:
        meshes = {role: _neighbours(load, load.tensor or tensor) for role, load in loads.items()}
        for choice in _choices(job, loads, meshes, static):
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
            f"{job.spec.rollout.kv_cache_memory}, allowed at least {format_bytes(least)} on each "
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
        f"{each.role}'s engines of {each.mesh.tensor} with a cache of "
        f"{format_bytes(each.kv_cache_bytes)}"
        for each in choice.engines
        if each.role in group.generating
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


def _tensor_sizes(pool: DeviceInventory, loads: Sequence[GenerationLoad]) -> tuple[int, ...]:
    """Sizes of the engines of all roles for which the manifest has none: those of a process share
    its groups."""
    for load in loads:
        if load.tensor and (problem := _does_not_divide(load.tensor, pool, load)):
            sizes = range(1, 1 + pool.devices_per_node)
            usable = [size for size in sizes if _does_not_divide(size, pool, load) is None]
            raise DoesNotDivide(
                f"{load.tensor_field} cannot be {load.tensor}: got {problem}; choose "
                f"{' or '.join(map(str, usable)) or 'other devices'}, or leave it out and the "
                "planner chooses"
            ).at("spec", *load.tensor_field.split("."))
    free = [load for load in loads if load.tensor is None]
    if loads and not free:
        return (1,)
    powers = [2**k for k in range(pool.devices_per_node.bit_length())]
    return tuple(
        power
        for power in powers
        if all(_does_not_divide(power, pool, each) is None for each in free)
    )


def _does_not_divide(tensor: int, pool: DeviceInventory, load: GenerationLoad) -> str | None:
    return _not_aligned(tensor, pool, load.trained.generating) or _not_cut(tensor, load.shape)


def _not_aligned(tensor: int, pool: DeviceInventory, mesh: Mesh) -> str | None:
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


def _choices(
    job: RLHFJob, loads: Loads, meshes: Mapping[str, Mesh], static: tuple[GroupMemory, ...]
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
    given = job.spec.rollout.kv_cache_memory
    if given is not None:
        fixed = whole(given)
        if all(fixed >= needed for needed in least.values()):
            yield choice(dict.fromkeys(loads, fixed), False)
            yield choice(dict.fromkeys(loads, fixed), True)
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


def cache_reason(
    job: RLHFJob, choice: GenerationChoice, engine: EngineChoice, load: GenerationLoad
) -> str:
    """Why a role's cache has its size."""
    if job.spec.rollout.kv_cache_memory is not None:
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
