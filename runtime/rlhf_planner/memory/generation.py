"""A way to generate on a pool: the engines of each role, and what memory then holds.

Memory of one device: what the generation engine of a role needs.

What a job asks of the generation engines of its roles.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rlhf_api.calls import CallKind, Phase, call_phase
from rlhf_api.plan import GraphName, Mesh, Pool
from rlhf_api.plan_memory import MemoryItem, MemoryUse
from rlhf_api.spec.models import TrainingEngineType
from rlhf_api.spec.resources import Device
from rlhf_planner.memory.engine_groups import TrainedModel
from rlhf_planner.memory.items import FLOAT32_BYTES, MIB, RoleModel
from rlhf_planner.placement.placement import GroupMemory, RolePlacement
from rlhf_planner.problem.problem import PlanningProblem
from rlhf_sizing.limits import BATCHED_TOKENS, TRANSFER_BUCKET_ELEMENTS
from rlhf_sizing.shape import DecoderShape
from rlhf_sizing.weights import VOCABULARY_MULTIPLE


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
            group_memory.group.pool.memory_bytes_per_device
            - group_memory.generation_peak(role, engine.release)
            for group_memory in self.memory
            if role in group_memory.group.generating
        )


KV_BLOCK_TOKENS: Mapping[Device, int] = {Device.CPU: 32, Device.GPU: 16}
"""Tokens of a block of the cache. On CPUs vLLM's own choice of 128 is slower."""

CHECKSUM_BYTES: Mapping[Device, int] = {Device.CPU: MIB, Device.GPU: 256 * MIB}
"""Blocks of weights that are widened to integers while their checksums are computed."""

GRAPHS_BYTES: Mapping[Device, int] = {Device.CPU: 0, Device.GPU: 100 * 8 * MIB + 394 * MIB}
"""About a hundred graphs of vLLM, and the workspace of its attention, which stay while the rest of
an engine is given back. The graphs' sizes are an estimate."""

KV_FLOOR_BYTES: Mapping[Device, int] = {Device.CPU: 16 * MIB, Device.GPU: 0}
"""Smallest cache that a plan gives."""


@dataclass(frozen=True)
class GenerationCall:
    """A call that generates."""

    prompts: int
    """Of one run."""
    samples: int
    """Responses to each, at most."""

    @property
    def rows(self) -> int:
        """Responses of all engines, at most."""
        return self.prompts * self.samples

    def sequences(self, num_engines: int) -> int:
        """Those of one engine at most: engines get whole prompts, equally many or one more."""
        return -(-self.prompts // num_engines) * self.samples


@dataclass(frozen=True)
class GenerationLoad:
    """What the engine is asked for."""

    shape: DecoderShape
    """The model's dimensions."""
    mesh: Mesh
    """The ranks that hold the model."""
    device: Device
    """What ranks compute on."""
    number_bytes: int
    """Bytes of a weight, a key or a value."""
    max_prompt_tokens: int
    """Longest prompt."""
    max_response_tokens: int
    """Longest response."""
    max_concurrent_sequences: int
    """Sequences that one engine decodes at once, at most."""
    engine: TrainingEngineType
    """What trains the model."""
    calls: tuple[GenerationCall, ...] = ()
    """That generate, as far as their prompts are known."""
    elsewhere: Mesh | None = None
    """The ranks that generate, where they are not those that hold the model."""
    tensor: int | None = None
    """Ranks of an engine, as the manifest says. None: it does not."""
    tensor_field: str = "rollout.parallelism.tensor"
    """What says it."""
    is_chosen: bool = False
    """Whether it is the planner that says it, as the fastest."""

    @property
    def trained(self) -> TrainedModel:
        """The model as it is trained."""
        return TrainedModel(self.shape, self.mesh, self.number_bytes, self.engine, self.elsewhere)

    def sequences(self, num_engines: int) -> int:
        """Sequences that one of so many engines has at once."""
        given = [call.sequences(num_engines) for call in self.calls]
        return min(self.max_concurrent_sequences, max(given, default=self.max_concurrent_sequences))

    @property
    def max_sequence_tokens(self) -> int:
        """Longest prompt plus longest response."""
        return self.max_prompt_tokens + self.max_response_tokens


def key_value_heads_per_rank(shape: DecoderShape, tensor: int) -> int:
    """Key and value heads on each rank; fewer heads than ranks are replicated."""
    return max(1, shape.num_key_value_heads // tensor)


def kv_token_bytes(load: GenerationLoad, tensor: int) -> int:
    """Bytes of one token's keys and values on each rank."""
    heads = key_value_heads_per_rank(load.shape, tensor)
    return 2 * load.shape.num_layers * heads * load.shape.head_dim * load.number_bytes


def kv_bytes(load: GenerationLoad, tensor: int, num_sequences: int) -> int:
    """Bytes of a cache for so many longest sequences, in whole blocks and with the engine's spare
    one."""
    block = KV_BLOCK_TOKENS[load.device]
    blocks = num_sequences * -(-load.max_sequence_tokens // block) + 1
    return max(blocks * block * kv_token_bytes(load, tensor), KV_FLOOR_BYTES[load.device])


def generation_weight_bytes(load: GenerationLoad, tensor: int) -> int:
    """Bytes of one rank's weights: matrices cut by tensor parallelism, norms replicated."""
    shape = load.shape
    rows = -(-shape.vocab_size // VOCABULARY_MULTIPLE) * VOCABULARY_MULTIPLE
    tables = (1 if shape.tied_embeddings else 2) * -(-rows // tensor) * shape.hidden_size
    queries = -(-shape.query_size // tensor)
    qkv = queries + 2 * key_value_heads_per_rank(shape, tensor) * shape.head_dim
    attention = shape.hidden_size * (qkv + queries) + (qkv if shape.qkv_bias else 0)
    feed_forward = 3 * shape.hidden_size * -(-shape.intermediate_size // tensor)
    head_norms = 2 * shape.head_dim if shape.query_key_norm else 0
    norms = shape.norms_per_layer * shape.hidden_size + head_norms
    blocks = shape.num_layers * (attention + feed_forward + norms)
    return (tables + blocks + shape.hidden_size) * load.number_bytes


def generation_activation_bytes(load: GenerationLoad, tensor: int) -> int:
    """Bytes of one block's intermediate results for the largest batch of tokens."""
    shape = load.shape
    cut = 2 * shape.query_size + 2 * shape.key_value_size + 3 * shape.intermediate_size
    width = 3 * shape.hidden_size + -(-cut // tensor)
    return max(BATCHED_TOKENS, load.max_sequence_tokens) * width * load.number_bytes


def transfer_bytes(load: GenerationLoad, tensor: int) -> int:
    """Bytes that the transition needs beside both engines' weights."""
    checksums = CHECKSUM_BYTES[load.device]
    if load.mesh.num_devices == 1 and load.elsewhere is None:
        return checksums
    bucket = TRANSFER_BUCKET_ELEMENTS * load.number_bytes
    return checksums + 2 * min(bucket, generation_weight_bytes(load, tensor))


def sending_items(
    load: GenerationLoad, *, role: str, tensor: int, phases: tuple[Phase, ...]
) -> tuple[MemoryItem, ...]:
    """What a transition needs on devices that hold the model and do not generate."""
    size, reshard = transfer_bytes(load, tensor), call_phase(role, CallKind.RESHARD)
    return (MemoryItem(role=role, what=MemoryUse.TRANSFER, bytes=size, phases=(reshard,)),)


def generation_items(
    load: GenerationLoad,
    *,
    role: str,
    tensor: int,
    kv_cache_bytes: int,
    phases: tuple[Phase, ...],
    release: bool,
) -> tuple[MemoryItem, ...]:
    """What generation needs on each device.

    Args:
        load: what the engine is asked for.
        role: whose engine it is.
        tensor: ranks that one engine spans.
        kv_cache_bytes: its cache on each device.
        phases: all phases of these devices.
        release: whether weights and cache are freed when no call generates. Weights are there again
            when new ones are handed over (`reshard`), the cache afterwards.
    """
    generate, reshard = (call_phase(role, kind) for kind in (CallKind.GENERATE, CallKind.RESHARD))
    held = (reshard, generate) if release else phases
    logits = load.max_concurrent_sequences * load.shape.vocab_size * 2 * FLOAT32_BYTES
    sizes = (
        (MemoryUse.GENERATION_WEIGHTS, generation_weight_bytes(load, tensor), held),
        (MemoryUse.KV_CACHE, kv_cache_bytes, (generate,) if release else phases),
        (MemoryUse.ACTIVATIONS, generation_activation_bytes(load, tensor), (generate,)),
        (MemoryUse.LOGITS, logits, (generate,)),
        (MemoryUse.GRAPHS, GRAPHS_BYTES[load.device], phases),
        (MemoryUse.TRANSFER, transfer_bytes(load, tensor), (reshard,)),
    )
    return tuple(
        MemoryItem(role=role, what=what, bytes=size, phases=tuple(p for p in phases if p in where))
        for what, size, where in sizes
        if size
    )


Loads = Mapping[str, GenerationLoad]
"""What each role that generates asks of its engines."""


def generation_loads(
    problem: PlanningProblem,
    pool: Pool,
    models: Sequence[RoleModel],
    places: Mapping[str, RolePlacement],
) -> Loads:
    """What the job asks of the engines of each role that generates on a pool.

    Args:
        problem: what is planned.
        pool: the devices.
        models: of all roles.
        places: where they are.
    """
    return {
        model.role: generation_load(problem, pool, model, places[model.role])
        for model in models
        if model.generates and model.mesh.pool == pool.name
    }


def generation_load(
    problem: PlanningProblem, pool: Pool, model: RoleModel, where: RolePlacement
) -> GenerationLoad:
    """What the job asks of the engines of one role; arguments as above."""
    workload, place = problem.workload, where.generation
    return GenerationLoad(
        shape=model.shape,
        mesh=model.mesh,
        device=pool.device,
        number_bytes=model.compute_bytes,
        max_prompt_tokens=workload.max_prompt_tokens,
        max_response_tokens=workload.max_response_tokens,
        max_concurrent_sequences=workload.max_concurrent_sequences,
        calls=_calls_of(problem, model.role),
        engine=model.engine,
        elsewhere=None if place.mesh.ranks == model.mesh.ranks else place.mesh,
        tensor=place.tensor or problem.fixed.engine_tensor,
        tensor_field=f"{place.field}.tensor" if place.tensor else "rollout.parallelism.tensor",
        is_chosen=place.is_chosen and problem.fixed.engine_tensor is None,
    )


def _calls_of(problem: PlanningProblem, role: str) -> tuple[GenerationCall, ...]:
    """The calls of a role that generate, as far as it is known of how many prompts they are: of
    held-out ones only where their number has a limit."""
    prompts = {
        GraphName.STEP: problem.workload.prompts_per_step,
        GraphName.EVALUATION: problem.workload.evaluation_prompts,
    }
    return tuple(
        GenerationCall(count, graph.rows[call.id].maximum)
        for name, graph in problem.graphs.items()
        for call in graph.calls_of_kind(CallKind.GENERATE)
        if call.role == role and (count := prompts.get(name)) is not None
    )
