"""Generation engines: the choice of them, their memory on a device, and the load on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rlhf_api.calls import CallKind, Phase, call_phase
from rlhf_api.mesh import Mesh
from rlhf_api.plan import GraphName, Pool
from rlhf_api.plan_memory import MemoryItem, MemoryUse
from rlhf_api.spec.models import TrainingEngineType
from rlhf_api.spec.resources import Device
from rlhf_planner.memory.engine_groups import TrainedModel
from rlhf_planner.memory.role_model import FLOAT32_BYTES, MIB, RoleModel
from rlhf_planner.placement.placement import GroupMemory
from rlhf_planner.placement.strategy import EngineStrategy
from rlhf_planner.problem.problem import PlanningProblem
from rlhf_sizing.limits import BATCHED_TOKENS, TRANSFER_BUCKET_ELEMENTS
from rlhf_sizing.shape import DecoderShape
from rlhf_sizing.weights import VOCABULARY_MULTIPLE


@dataclass(frozen=True)
class GenerationChoice:
    """Generation engines on a pool, with the memory that results."""

    engines: Mapping[str, EngineStrategy]
    """The engines of each role that generates there, complete but for their stride."""
    release: bool
    """True if weights and caches are released while no call generates, on devices with other roles.
    """
    memory: tuple[GroupMemory, ...]
    """Memory of each group of the pool's devices, generation included."""

    @property
    def fits(self) -> bool:
        """True if every device has enough memory."""
        return self.fullest.excess_bytes <= 0

    @property
    def fullest(self) -> GroupMemory:
        """The group with the largest excess."""
        return max(self.memory, key=lambda group_memory: group_memory.excess_bytes)

    def spare_bytes(self, role: str) -> int:
        """Free bytes on the fullest device that holds a role's cache."""
        release = bool(self.engines[role].release)
        return min(
            group_memory.group.pool.memory_bytes_per_device
            - group_memory.generation_peak(role, release)
            for group_memory in self.memory
            if role in group_memory.group.generating
        )


# Tokens of a block of the cache. On CPUs vLLM's default of 128 is slower.
KV_BLOCK_TOKENS: Mapping[Device, int] = {Device.CPU: 32, Device.GPU: 16}

# Blocks of weights that are widened to integers while their checksums are computed.
CHECKSUM_BYTES: Mapping[Device, int] = {Device.CPU: MIB, Device.GPU: 256 * MIB}

# About a hundred graphs of vLLM and the workspace of its attention, which stay when the rest of an
# engine is released. The graphs' sizes are an estimate.
GRAPHS_BYTES: Mapping[Device, int] = {Device.CPU: 0, Device.GPU: 100 * 8 * MIB + 394 * MIB}

# Smallest cache that a plan gives.
KV_FLOOR_BYTES: Mapping[Device, int] = {Device.CPU: 16 * MIB, Device.GPU: 0}


@dataclass(frozen=True)
class GenerationCall:
    """A call that generates."""

    prompts: int
    """Prompts of one run."""
    samples: int
    """Upper bound of responses to each prompt."""

    @property
    def rows(self) -> int:
        """Upper bound of responses of all engines."""
        return self.prompts * self.samples

    def sequences(self, num_engines: int) -> int:
        """Upper bound of sequences on one engine."""
        # Engines get full prompts, the same number or one more.
        return -(-self.prompts // num_engines) * self.samples


@dataclass(frozen=True)
class GenerationLoad:
    """The load on the generation engines of a role."""

    shape: DecoderShape
    """Dimensions of the model."""
    mesh: Mesh
    """The ranks that hold the model."""
    device: Device
    """Device of the ranks."""
    number_bytes: int
    """Bytes of a weight, a key or a value."""
    max_prompt_tokens: int
    """Longest prompt."""
    max_response_tokens: int
    """Longest response."""
    max_concurrent_sequences: int
    """Limit of sequences that one engine decodes at once."""
    engine: TrainingEngineType
    """The engine that trains the model."""
    calls: tuple[GenerationCall, ...] = ()
    """Calls that generate, as far as the number of their prompts is bounded."""
    generation_mesh: Mesh | None = None
    """The ranks that generate, if they are not those that hold the model."""

    @property
    def trained(self) -> TrainedModel:
        """The model as it is trained."""
        return TrainedModel(
            self.shape, self.mesh, self.number_bytes, self.engine, self.generation_mesh
        )

    def sequences(self, num_engines: int) -> int:
        """Sequences that one of `num_engines` engines has at once."""
        # Without calls the number of prompts has no bound, and the engine's limit counts.
        from_calls = [call.sequences(num_engines) for call in self.calls]
        return min(
            self.max_concurrent_sequences, max(from_calls, default=self.max_concurrent_sequences)
        )

    @property
    def max_sequence_tokens(self) -> int:
        """Longest prompt plus longest response."""
        return self.max_prompt_tokens + self.max_response_tokens


def key_value_heads_per_rank(shape: DecoderShape, tensor: int) -> int:
    """Key and value heads on each rank."""
    # Fewer heads than ranks are replicated.
    return max(1, shape.num_key_value_heads // tensor)


def kv_token_bytes(load: GenerationLoad, tensor: int) -> int:
    """Bytes of one token's keys and values on each rank."""
    heads = key_value_heads_per_rank(load.shape, tensor)
    return 2 * load.shape.num_layers * heads * load.shape.head_dim * load.number_bytes


def kv_bytes(load: GenerationLoad, tensor: int, num_sequences: int) -> int:
    """Bytes of a cache for a number of longest sequences."""
    block = KV_BLOCK_TOKENS[load.device]
    # Full blocks, and the engine's spare one.
    blocks = num_sequences * -(-load.max_sequence_tokens // block) + 1
    return max(blocks * block * kv_token_bytes(load, tensor), KV_FLOOR_BYTES[load.device])


def generation_weight_bytes(load: GenerationLoad, tensor: int) -> int:
    """Bytes of one rank's weights."""
    # Tensor parallelism cuts matrices and replicates norms.
    shape = load.shape
    embedding = 0 if shape.tied_embeddings else _table_size(shape, tensor)
    biases = _qkv_size(shape, tensor) if shape.qkv_bias else 0
    head_norms = 2 * shape.head_dim if shape.query_key_norm else 0
    norms = shape.norms_per_layer * shape.hidden_size + head_norms
    others = embedding + shape.num_layers * (biases + norms) + shape.hidden_size
    return packed_weight_bytes(load, tensor) + others * load.number_bytes


def packed_weight_bytes(load: GenerationLoad, tensor: int) -> int:
    """Bytes of one rank's matrices that inputs are multiplied with, packed or not."""
    shape = load.shape
    attention = shape.hidden_size * (_qkv_size(shape, tensor) + -(-shape.query_size // tensor))
    feed_forward = 3 * shape.hidden_size * -(-shape.intermediate_size // tensor)
    blocks = shape.num_layers * (attention + feed_forward)
    return (_table_size(shape, tensor) + blocks) * load.number_bytes


def _table_size(shape: DecoderShape, tensor: int) -> int:
    """Elements of one rank's part of an embedding or a head, whose vocabulary is padded."""
    rows = -(-shape.vocab_size // VOCABULARY_MULTIPLE) * VOCABULARY_MULTIPLE
    return -(-rows // tensor) * shape.hidden_size


def _qkv_size(shape: DecoderShape, tensor: int) -> int:
    """Outputs of one rank's projection to queries, keys and values."""
    key_values = 2 * key_value_heads_per_rank(shape, tensor) * shape.head_dim
    return -(-shape.query_size // tensor) + key_values


def generation_activation_bytes(load: GenerationLoad, tensor: int) -> int:
    """Bytes of one block's intermediate results for the largest batch of tokens."""
    shape = load.shape
    cut = 2 * shape.query_size + 2 * shape.key_value_size + 3 * shape.intermediate_size
    width = 3 * shape.hidden_size + -(-cut // tensor)
    return max(BATCHED_TOKENS, load.max_sequence_tokens) * width * load.number_bytes


def transfer_bytes(load: GenerationLoad, tensor: int) -> int:
    """Bytes of the reshard, next to both engines' weights."""
    # A single rank that trains and generates sends nothing; else one bucket is sent and one
    # received at a time.
    checksums = CHECKSUM_BYTES[load.device]
    if load.mesh.num_devices == 1 and load.generation_mesh is None:
        return checksums
    bucket = TRANSFER_BUCKET_ELEMENTS * load.number_bytes
    return checksums + 2 * min(bucket, generation_weight_bytes(load, tensor))


def sending_items(
    load: GenerationLoad, *, role: str, tensor: int, phases: tuple[Phase, ...]
) -> tuple[MemoryItem, ...]:
    """Memory of the reshard on devices that hold the model and do not generate."""
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
    packs_weights: bool,
) -> tuple[MemoryItem, ...]:
    """Memory of generation on each device.

    Args:
        load: on the engine.
        role: of the engine.
        tensor: ranks of the engine.
        kv_cache_bytes: its cache on each device.
        phases: all phases of these devices.
        release: if weights and cache are released when no call generates.
        packs_weights: if the engine has packed copies of its weights.
    """
    # Released weights return when new ones arrive, in the reshard; the cache only afterwards.
    generate, reshard = (call_phase(role, kind) for kind in (CallKind.GENERATE, CallKind.RESHARD))
    resident = (reshard, generate) if release else phases
    logits = load.max_concurrent_sequences * load.shape.vocab_size * 2 * FLOAT32_BYTES
    sizes = (
        (MemoryUse.GENERATION_WEIGHTS, generation_weight_bytes(load, tensor), resident),
        (
            MemoryUse.PACKED_WEIGHTS,
            packed_weight_bytes(load, tensor) if packs_weights else 0,
            resident,
        ),
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


# The load of each role that generates.
Loads = Mapping[str, GenerationLoad]


def generation_loads(
    problem: PlanningProblem,
    pool: Pool,
    models: Sequence[RoleModel],
    engines: Mapping[str, EngineStrategy],
) -> Loads:
    """The load of each role that generates on a pool.

    Args:
        problem: the planning problem.
        pool: the devices.
        models: of all roles.
        engines: of all roles that generate.
    """
    return {
        model.role: generation_load(problem, model, engines[model.role])
        for model in models
        if model.generates and model.mesh.pool == pool.name
    }


def generation_load(
    problem: PlanningProblem, model: RoleModel, engines: EngineStrategy
) -> GenerationLoad:
    """The load on the engines of one role."""
    workload = problem.workload
    return GenerationLoad(
        shape=model.shape,
        mesh=model.mesh,
        device=problem.device,
        number_bytes=model.compute_bytes,
        max_prompt_tokens=workload.max_prompt_tokens,
        max_response_tokens=workload.max_response_tokens,
        max_concurrent_sequences=workload.max_concurrent_sequences,
        calls=_calls_of(problem, model.role),
        engine=model.engine,
        generation_mesh=None if engines.devices.ranks == model.mesh.ranks else engines.devices,
    )


def _calls_of(problem: PlanningProblem, role: str) -> tuple[GenerationCall, ...]:
    """The calls of a role that generate."""
    # An evaluation counts only if its number of prompts has a limit.
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
