"""How roles generate on a pool: ranks per engine, size of the cache, release of memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from rlhf_api import RLHFJob
from rlhf_api.plan import CallKind, Mesh, phase_name
from rlhf_api.plan_memory import MemoryItem, sum_by_phase
from rlhf_api.quantity import whole
from rlhf_flow.errors import DoesNotDivide, DoesNotFit, KvCacheTooSmall
from rlhf_flow.planning.generation_groups import engine_meshes, groupings
from rlhf_flow.planning.generation_memory import GenerationLoad, generation_items, kv_bytes
from rlhf_flow.planning.inventory import DeviceInventory
from rlhf_flow.planning.memory import RoleModel
from rlhf_flow.planning.placement import DeviceGroup
from rlhf_flow.planning.refusal import format_bytes, overflow_message
from rlhf_flow.planning.shapes import DecoderShape


@dataclass(frozen=True)
class EngineChoice:
    """The engines of one role."""

    role: str
    mesh: Mesh
    """Their ranks: an engine spans its tensor axis."""
    kv_cache_bytes: int
    """On each device."""


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
    """Whether weights and caches are freed while no call generates."""
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
        return min(
            each.group.pool.memory_bytes_per_device - each.held_peak(role, self.release)
            for each in self.memory
            if role in each.group.roles
        )


Loads = Mapping[str, GenerationLoad]
"""What each role that generates asks of its engines."""


def generation_loads(job: RLHFJob, pool: DeviceInventory, models: Sequence[RoleModel]) -> Loads:
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
        )
        for model in models
        if model.generates and model.mesh.pool == pool.pool
    }


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
    sizes = _tensor_sizes(job, pool, tuple(loads.values()))
    trained = {role: load.trained for role, load in loads.items()}
    last: GenerationChoice | None = None
    for tensor in sizes:
        meshes = engine_meshes(trained, tensor, pool.devices_per_node)
        for choice in _choices(job, loads, meshes, static):
            if choice.fits:
                return choice
            last = choice
    if last is None:
        least = max(kv_bytes(load, sizes[-1], 1) for load in loads.values())
        raise KvCacheTooSmall(
            f"rollout.kvCacheMemory is below one longest sequence: got "
            f"{job.spec.rollout.kv_cache_memory}, allowed at least {format_bytes(least)} on each "
            f"device with engines of {sizes[-1]}; raise it, or lower rollout.maxPromptTokens or "
            "maxResponseTokens"
        )
    raise DoesNotFit(_overflow(last))


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
        if each.role in group.roles
    ]
    released = ["generation memory released during training"] if engines else []
    setting = ", ".join([devices, *engines, *released])
    return overflow_message(choice.fullest.items, pool.memory_bytes_per_device, setting)


def _tensor_sizes(
    job: RLHFJob, pool: DeviceInventory, loads: Sequence[GenerationLoad]
) -> tuple[int, ...]:
    """Sizes that the engines of all roles may have: those of a process share its groups."""
    given = job.spec.rollout.parallelism.tensor
    if given is not None:
        for problem in filter(None, (_does_not_divide(given, pool, each) for each in loads)):
            raise DoesNotDivide(
                f"rollout.parallelism.tensor cannot be {given}: got {problem}; choose another one, "
                "or leave it out and the planner chooses"
            )
        return (given,)
    powers = [2**k for k in range(pool.devices_per_node.bit_length())]
    return tuple(
        power
        for power in powers
        if all(_does_not_divide(power, pool, each) is None for each in loads)
    )


def _does_not_divide(tensor: int, pool: DeviceInventory, load: GenerationLoad) -> str | None:
    return _not_aligned(tensor, pool, load.mesh) or _not_cut(tensor, load.shape)


def _not_aligned(tensor: int, pool: DeviceInventory, mesh: Mesh) -> str | None:
    """Every rank is in one engine, whose ranks share a node."""
    if mesh.num_devices % tensor:
        return f"{mesh.num_devices} devices that generate, allowed one of its divisors"
    if not groupings(mesh, tensor, pool.devices_per_node):
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
    return None


def _choices(
    job: RLHFJob, loads: Loads, meshes: Mapping[str, Mesh], static: tuple[GroupMemory, ...]
) -> Iterator[GenerationChoice]:
    """Ways to generate with engines on some meshes, best first; none where a given cache is too
    small."""

    def choice(caches: Mapping[str, int], release: bool) -> GenerationChoice:
        engines = tuple(EngineChoice(role, meshes[role], caches[role]) for role in loads)
        memory = tuple(_with_engines(each, loads, engines, release) for each in static)
        return GenerationChoice(engines, release, memory)

    least, most = (
        {
            role: kv_bytes(load, meshes[role].tensor, sequences or load.max_concurrent_sequences)
            for role, load in loads.items()
        }
        for sequences in (1, None)
    )
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


def _with_engines(
    static: GroupMemory, loads: Loads, engines: Sequence[EngineChoice], release: bool
) -> GroupMemory:
    items = static.items
    for engine in engines:
        if engine.role in static.group.roles:
            items += generation_items(
                loads[engine.role],
                role=engine.role,
                tensor=engine.mesh.tensor,
                kv_cache_bytes=engine.kv_cache_bytes,
                phases=static.phases,
                release=release,
            )
    return GroupMemory(static.group, static.phases, items)


def cache_reason(job: RLHFJob, choice: GenerationChoice, role: str) -> str:
    """Why a role's cache has its size."""
    rollout = job.spec.rollout
    if rollout.kv_cache_memory is not None:
        return "rollout.kvCacheMemory says so"
    if not choice.release:
        return f"all that {rollout.max_concurrent_sequences} longest sequences need"
    if choice.spare_bytes(role) == 0:
        return "what is left over while generation holds its memory"
    return (
        f"what {rollout.max_concurrent_sequences} longest sequences need, or at least one of them"
    )
