"""How the actor generates on a pool: ranks per engine, size of the cache, release of memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rlhf_api import RLHFJob
from rlhf_api.plan import CallKind, MemoryItem, phase_name, sum_by_phase
from rlhf_api.quantity import whole
from rlhf_flow.errors import DoesNotDivide, DoesNotFit, KvCacheTooSmall
from rlhf_flow.job_graphs import ACTOR
from rlhf_flow.planning.generation_memory import GenerationLoad, generation_items, kv_bytes
from rlhf_flow.planning.inventory import DeviceInventory
from rlhf_flow.planning.memory import RoleModel
from rlhf_flow.planning.refusal import format_bytes, overflow_message
from rlhf_flow.planning.shapes import DecoderShape


@dataclass(frozen=True)
class GenerationChoice:
    """One way to generate, and whether it fits."""

    tensor: int
    kv_cache_bytes: int
    release: bool
    items: tuple[MemoryItem, ...]
    """All of a device's, generation's among them."""

    def fits(self, capacity: int) -> bool:
        """Whether no phase exceeds the capacity."""
        return max(sum_by_phase(self.items).values()) <= capacity


def generation_load(
    job: RLHFJob, pool: DeviceInventory, models: tuple[RoleModel, ...]
) -> GenerationLoad:
    """What the job asks of its engines."""
    actor = next(model for model in models if model.role == ACTOR)
    return GenerationLoad(
        shape=actor.shape,
        device=pool.device,
        number_bytes=actor.compute_bytes,
        max_prompt_tokens=job.spec.rollout.max_prompt_tokens,
        max_response_tokens=job.spec.rollout.max_response_tokens,
        max_concurrent_sequences=job.spec.rollout.max_concurrent_sequences,
    )


def choose_generation(
    job: RLHFJob,
    pool: DeviceInventory,
    models: tuple[RoleModel, ...],
    phases: tuple[str, ...],
    static: tuple[MemoryItem, ...],
) -> GenerationChoice:
    """The first way to generate that fits: the smallest engines, memory kept where it can be.

    Raises:
        DoesNotDivide: a given tensor parallelism that does not divide.
        KvCacheTooSmall: a given cache below one longest sequence.
        DoesNotFit: no way fits.
    """
    load = generation_load(job, pool, models)
    sizes = _tensor_sizes(job, pool, load.shape)
    last: GenerationChoice | None = None
    for tensor in sizes:
        for choice in _choices(job, load, pool, tensor, phases, static):
            if choice.fits(pool.memory_bytes_per_device):
                return choice
            last = choice
    if last is None:
        least = format_bytes(kv_bytes(load, sizes[-1], 1))
        raise KvCacheTooSmall(
            f"rollout.kvCacheMemory is below one longest sequence: got "
            f"{job.spec.rollout.kv_cache_memory}, allowed at least {least} on each device "
            f"with engines of {sizes[-1]}; raise it, or lower rollout.maxPromptTokens or "
            "maxResponseTokens"
        )
    setting = (
        f"{pool.num_devices} {pool.device.value} devices, engines of {last.tensor}, generation "
        f"memory released during training, a cache of {format_bytes(last.kv_cache_bytes)}"
    )
    raise DoesNotFit(overflow_message(last.items, pool.memory_bytes_per_device, setting))


def _tensor_sizes(job: RLHFJob, pool: DeviceInventory, shape: DecoderShape) -> tuple[int, ...]:
    given = job.spec.rollout.parallelism.tensor
    if given is not None:
        problem = _does_not_divide(given, pool, shape)
        if problem is not None:
            raise DoesNotDivide(
                f"rollout.parallelism.tensor cannot be {given}: got {problem}; choose another one, "
                "or leave it out and the planner chooses"
            )
        return (given,)
    powers = [2**k for k in range(pool.devices_per_node.bit_length())]
    return tuple(t for t in powers if _does_not_divide(t, pool, shape) is None)


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
    load: GenerationLoad,
    pool: DeviceInventory,
    tensor: int,
    phases: tuple[str, ...],
    static: tuple[MemoryItem, ...],
) -> Iterator[GenerationChoice]:
    """Ways to generate with engines of a size, best first; none where a given cache is too
    small."""

    def choice(kv_cache: int, release: bool) -> GenerationChoice:
        needed = generation_items(
            load,
            role=ACTOR,
            num_ranks=pool.num_devices,
            tensor=tensor,
            kv_cache_bytes=kv_cache,
            phases=phases,
            release=release,
        )
        return GenerationChoice(tensor, kv_cache, release, static + needed)

    least = kv_bytes(load, tensor, 1)
    most = kv_bytes(load, tensor, load.max_concurrent_sequences)
    given = job.spec.rollout.kv_cache_memory
    if given is not None:
        fixed = whole(given)
        if fixed < least:
            return
        yield choice(fixed, False)
        yield choice(fixed, True)
        return
    yield choice(most, False)
    spare = pool.memory_bytes_per_device - _held_peak(choice(0, True))
    yield choice(max(least, min(most, spare)), True)


def _held_peak(choice: GenerationChoice) -> int:
    """Bytes in the fuller of the two phases that hold the cache."""
    sums = sum_by_phase(choice.items)
    return max(sums[f"{ACTOR}.transition"], sums[phase_name(ACTOR, CallKind.GENERATE)])


def cache_reason(job: RLHFJob, choice: GenerationChoice, pool: DeviceInventory) -> str:
    """Why the cache has its size."""
    rollout = job.spec.rollout
    if rollout.kv_cache_memory is not None:
        return "rollout.kvCacheMemory says so"
    if not choice.release:
        return f"all that {rollout.max_concurrent_sequences} longest sequences need"
    if _held_peak(choice) == pool.memory_bytes_per_device:
        return "what is left over while generation holds its memory"
    return (
        f"what {rollout.max_concurrent_sequences} longest sequences need, or at least one of them"
    )
