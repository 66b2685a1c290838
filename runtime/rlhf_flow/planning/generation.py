"""How roles generate on a pool: ranks per engine, size of the cache, release of memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from rlhf_api import RLHFJob
from rlhf_api.plan import CallKind, MemoryItem, phase_name, sum_by_phase, transition_phase
from rlhf_api.quantity import whole
from rlhf_flow.errors import DoesNotDivide, DoesNotFit, KvCacheTooSmall
from rlhf_flow.planning.generation_memory import GenerationLoad, generation_items, kv_bytes
from rlhf_flow.planning.inventory import DeviceInventory
from rlhf_flow.planning.memory import RoleModel
from rlhf_flow.planning.refusal import format_bytes, overflow_message
from rlhf_flow.planning.shapes import DecoderShape


@dataclass(frozen=True)
class EngineChoice:
    """The engines of one role."""

    role: str
    tensor: int
    """Ranks that one spans."""
    kv_cache_bytes: int
    """On each device."""


@dataclass(frozen=True)
class GenerationChoice:
    """One way to generate, and whether it fits."""

    engines: tuple[EngineChoice, ...]
    """Of each role that generates."""
    release: bool
    """Whether weights and caches are freed while no call generates."""
    items: tuple[MemoryItem, ...]
    """All of a device's, generation's among them."""

    def engine(self, role: str) -> EngineChoice:
        """The engines of a role that generates."""
        return next(each for each in self.engines if each.role == role)

    def fits(self, capacity: int) -> bool:
        """Whether no phase exceeds the capacity."""
        return max(sum_by_phase(self.items).values()) <= capacity

    def held_peak(self, role: str) -> int:
        """Bytes in the fuller of the two phases that hold a role's cache."""
        sums = sum_by_phase(self.items)
        return max(sums[transition_phase(role)], sums[phase_name(role, CallKind.GENERATE)])


Loads = Mapping[str, GenerationLoad]
"""What each role that generates asks of its engines."""


def generation_loads(job: RLHFJob, pool: DeviceInventory, models: tuple[RoleModel, ...]) -> Loads:
    """What the job asks of the engines of each role that generates."""
    return {
        model.role: GenerationLoad(
            shape=model.shape,
            device=pool.device,
            number_bytes=model.compute_bytes,
            max_prompt_tokens=job.spec.rollout.max_prompt_tokens,
            max_response_tokens=job.spec.rollout.max_response_tokens,
            max_concurrent_sequences=job.spec.rollout.max_concurrent_sequences,
        )
        for model in models
        if model.generates
    }


def choose_generation(
    job: RLHFJob,
    pool: DeviceInventory,
    loads: Loads,
    phases: tuple[str, ...],
    static: tuple[MemoryItem, ...],
) -> GenerationChoice:
    """The first way to generate that fits: the smallest engines, memory kept where it can be.

    Raises:
        DoesNotDivide: a given tensor parallelism that does not divide.
        KvCacheTooSmall: a given cache below one longest sequence.
        DoesNotFit: no way fits.
    """
    sizes = _tensor_sizes(job, pool, [load.shape for load in loads.values()])
    last: GenerationChoice | None = None
    for tensor in sizes:
        for choice in _choices(job, loads, pool, tensor, phases, static):
            if choice.fits(pool.memory_bytes_per_device):
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
    devices = f"{pool.num_devices} {pool.device.value} devices"
    engines = [
        f"{each.role}'s engines of {each.tensor} with a cache of "
        f"{format_bytes(each.kv_cache_bytes)}"
        for each in last.engines
    ]
    released = ["generation memory released during training"] if engines else []
    setting = ", ".join([devices, *engines, *released])
    raise DoesNotFit(overflow_message(last.items, pool.memory_bytes_per_device, setting))


def _tensor_sizes(
    job: RLHFJob, pool: DeviceInventory, shapes: Sequence[DecoderShape]
) -> tuple[int, ...]:
    """Sizes that the engines of all roles may have: those of a process share its groups."""
    given = job.spec.rollout.parallelism.tensor
    if given is not None:
        for problem in filter(None, (_does_not_divide(given, pool, each) for each in shapes)):
            raise DoesNotDivide(
                f"rollout.parallelism.tensor cannot be {given}: got {problem}; choose another one, "
                "or leave it out and the planner chooses"
            )
        return (given,)
    powers = [2**k for k in range(pool.devices_per_node.bit_length())]
    return tuple(
        power
        for power in powers
        if all(_does_not_divide(power, pool, each) is None for each in shapes)
    )


def _does_not_divide(tensor: int, pool: DeviceInventory, shape: DecoderShape) -> str | None:
    kv_heads = shape.num_key_value_heads
    if pool.devices_per_node % tensor:
        return f"{pool.devices_per_node} devices per node, allowed one of its divisors"
    if shape.num_attention_heads % tensor:
        return f"{shape.num_attention_heads} attention heads, allowed one of its divisors"
    if kv_heads % tensor and tensor % kv_heads:
        return f"{kv_heads} key and value heads, allowed one of its divisors or multiples"
    if shape.intermediate_size % tensor:
        return f"intermediate size {shape.intermediate_size}, allowed one of its divisors"
    return None


def _choices(
    job: RLHFJob,
    loads: Loads,
    pool: DeviceInventory,
    tensor: int,
    phases: tuple[str, ...],
    static: tuple[MemoryItem, ...],
) -> Iterator[GenerationChoice]:
    """Ways to generate with engines of a size, best first; none where a given cache is too
    small."""

    def choice(caches: Mapping[str, int], release: bool) -> GenerationChoice:
        items = static
        for role, load in loads.items():
            items += generation_items(
                load,
                role=role,
                num_ranks=pool.num_devices,
                tensor=tensor,
                kv_cache_bytes=caches[role],
                phases=phases,
                release=release,
            )
        engines = tuple(EngineChoice(role, tensor, caches[role]) for role in loads)
        return GenerationChoice(engines, release, items)

    least = {role: kv_bytes(load, tensor, 1) for role, load in loads.items()}
    most = {
        role: kv_bytes(load, tensor, load.max_concurrent_sequences) for role, load in loads.items()
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
    spare = {role: pool.memory_bytes_per_device - empty.held_peak(role) for role in loads}
    yield choice({role: max(least[role], min(most[role], spare[role])) for role in loads}, True)


def cache_reason(job: RLHFJob, choice: GenerationChoice, role: str, pool: DeviceInventory) -> str:
    """Why a role's cache has its size."""
    rollout = job.spec.rollout
    if rollout.kv_cache_memory is not None:
        return "rollout.kvCacheMemory says so"
    if not choice.release:
        return f"all that {rollout.max_concurrent_sequences} longest sequences need"
    if choice.held_peak(role) == pool.memory_bytes_per_device:
        return "what is left over while generation holds its memory"
    return (
        f"what {rollout.max_concurrent_sequences} longest sequences need, or at least one of them"
    )
