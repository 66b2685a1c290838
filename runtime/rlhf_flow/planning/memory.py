"""Memory of one device: what each role's weights, training and inference need.

Every function is arithmetic on shapes; the sums and the search are elsewhere. Training is FSDP2:
states are sharded over all ranks, layers are gathered one after the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rlhf_api.plan import CallKind, Head, Mesh, phase_name
from rlhf_api.plan_memory import MemoryItem, MemoryWhat
from rlhf_api.spec.models import Precision
from rlhf_api.spec.resources import Device
from rlhf_flow.planning.head_memory import block_bytes
from rlhf_flow.planning.shapes import DecoderShape

MIB = 2**20
GIB = 2**30
FLOAT32_BYTES = 4
ADAM_BYTES = 8

PROCESS_BYTES: Mapping[Device, int] = {Device.CPU: 3 * GIB // 4, Device.GPU: 2 * GIB}
"""A rank's libraries whatever the job. CPU: torch, transformers and vLLM imported, measured. GPU:
the CUDA context, NCCL's buffers and the allocator's slack, an estimate."""
STANDBY_BYTES = GIB // 4
"""What a node's fork server holds for itself. Most pages of its libraries it shares with workers
that it has forked; 50 to 150 MiB were its own beside one and two ranks at work."""


@dataclass(frozen=True)
class RoleModel:
    """A role with a model, as far as memory is concerned."""

    role: str
    """Its name."""
    mesh: Mesh
    """The ranks that hold it."""
    device: Device
    """What they compute on."""
    head: Head
    """What its model ends in."""
    is_trained: bool
    """Whether its weights change."""
    generates: bool
    """Whether it has a generation engine."""
    shape: DecoderShape
    """Its dimensions."""
    precision: Precision
    """float32 or bfloat16."""
    micro_batch_tokens: int
    """Padded tokens that a rank runs through it at once, unless a sequence is longer."""
    peak_tokens: int
    """Padded tokens of the largest micro-batch that this job can have."""
    longest_shared_tokens: int
    """Longest sequence of a prompt and several responses; 0 where none is shared."""
    is_saved: bool
    """Whether checkpoints hold its state."""
    recompute: bool
    """Whether activations are computed again in the backward pass."""

    @property
    def num_parameters(self) -> int:
        """Parameters, exactly."""
        if self.head is Head.SCALAR:
            return self.shape.num_critic_parameters
        return self.shape.num_parameters

    @property
    def root_parameters(self) -> int:
        """Parameters outside the blocks; FSDP gathers them for a whole pass."""
        if self.head is Head.SCALAR:
            return self.shape.critic_root_parameters
        return self.shape.root_parameters

    @property
    def compute_bytes(self) -> int:
        """Bytes of a number in the computation."""
        return 2 if self.precision is Precision.BFLOAT16 else FLOAT32_BYTES

    @property
    def stored_bytes(self) -> int:
        """Bytes of a weight: trained ones are kept in float32."""
        return FLOAT32_BYTES if self.is_trained else self.compute_bytes


def shard_bytes(num_parameters: int, num_shards: int, number_bytes: int) -> int:
    """Bytes of the largest of equal shards."""
    return -(-num_parameters // num_shards) * number_bytes


def layer_activation_bytes(shape: DecoderShape, compute_bytes: int) -> int:
    """Bytes that one block keeps per token for its backward pass, without recomputation.

    Each norm keeps its input in float32 and two tensors in the compute format; attention keeps
    queries, keys, values and its output; the feed-forward layer keeps gate, up, the activated gate
    and the product; norms and attention keep one float32 for each head or row. Equal, to the byte,
    to what PyTorch's saved-tensor hooks count for a Hugging Face Llama with fused attention (13,336
    bytes in float32 and 7,192 in bfloat16 for TinyLlama).
    """
    heads_norm = shape.query_size + shape.key_value_size if shape.query_key_norm else 0
    normalized = shape.norms_per_layer * shape.hidden_size + heads_norm
    norms = normalized * (FLOAT32_BYTES + 2 * compute_bytes)
    attention = 2 * (shape.query_size + shape.key_value_size) * compute_bytes
    feed_forward = 4 * shape.intermediate_size * compute_bytes
    statistics = (shape.norms_per_layer + shape.num_attention_heads) * FLOAT32_BYTES
    return norms + attention + feed_forward + statistics


def training_activation_bytes(model: RoleModel) -> int:
    """Bytes of a micro-batch's activations when its backward pass begins."""
    layer = layer_activation_bytes(model.shape, model.compute_bytes)
    layers = model.shape.num_layers
    if model.recompute:
        kept = layers * model.shape.hidden_size * model.compute_bytes + layer
    else:
        kept = layers * layer
    return model.peak_tokens * kept


def logits_bytes(model: RoleModel) -> int:
    """Bytes of what a language model's head works on: a block of the scores over the vocabulary,
    its input and that one's gradient, which is summed in float32."""
    if model.head is Head.SCALAR:
        return 0
    block = block_bytes(model.device, model.peak_tokens, model.shape.vocab_size)
    inputs = model.shape.hidden_size * (FLOAT32_BYTES + 2 * model.compute_bytes)
    return block + model.peak_tokens * inputs


def mask_bytes(model: RoleModel) -> int:
    """Bytes of a micro-batch's attention mask: of booleans, and as what attention adds to scores.

    At most, that is if every response shares its prompt.
    """
    return model.peak_tokens * model.longest_shared_tokens * (1 + model.compute_bytes)


def is_sharded(model: RoleModel, num_shards: int) -> bool:
    """Whether FSDP manages the weights: one rank that computes in their format keeps ordinary
    ones."""
    return num_shards > 1 or model.compute_bytes != model.stored_bytes


def gathered_bytes(model: RoleModel, num_shards: int) -> int:
    """Bytes of the layers that are whole at once: the root, one block at work, one prefetched."""
    if not is_sharded(model, num_shards):
        return 0
    return (model.root_parameters + 2 * model.shape.block_parameters) * model.compute_bytes


def gradient_bytes(model: RoleModel, num_shards: int) -> int:
    """Bytes of the sharded float32 gradients and of those that are not reduced yet.

    Gradients are reduced block by block with every micro-batch: only the root's and one block's are
    whole at a time.
    """
    sharded = shard_bytes(model.num_parameters, num_shards, FLOAT32_BYTES)
    if not is_sharded(model, num_shards):
        return sharded
    whole = model.root_parameters + model.shape.block_parameters
    return sharded + whole * model.compute_bytes


def role_items(model: RoleModel, phases: tuple[str, ...]) -> tuple[MemoryItem, ...]:
    """What a role needs on each of its devices, apart from generation.

    Args:
        model: the role.
        phases: all phases of these devices.
    """
    num_shards = model.mesh.data
    infer, train = (
        tuple(phase for phase in phases if phase == phase_name(model.role, kind))
        for kind in (CallKind.INFER, CallKind.TRAIN)
    )
    forward_only = model.peak_tokens * layer_activation_bytes(model.shape, model.compute_bytes)
    sizes: list[tuple[MemoryWhat, int, tuple[str, ...]]] = []
    if model.is_trained:
        parameters = model.num_parameters
        sizes += [
            (MemoryWhat.MASTER_WEIGHTS, shard_bytes(parameters, num_shards, FLOAT32_BYTES), phases),
            (MemoryWhat.OPTIMIZER, shard_bytes(parameters, num_shards, ADAM_BYTES), phases),
            (MemoryWhat.GRADIENTS, gradient_bytes(model, num_shards), train),
        ]
    else:
        stored = shard_bytes(model.num_parameters, num_shards, model.stored_bytes)
        sizes.append((MemoryWhat.WEIGHTS, stored, phases))
    sizes += [
        (MemoryWhat.GATHERED, gathered_bytes(model, num_shards), infer + train),
        (MemoryWhat.ACTIVATIONS, forward_only, infer),
        (MemoryWhat.ACTIVATIONS, training_activation_bytes(model), train),
        (MemoryWhat.LOGITS, logits_bytes(model), infer + train),
        (MemoryWhat.MASKS, mask_bytes(model), infer + train),
    ]
    return tuple(
        MemoryItem(role=model.role, what=what, bytes=size, phases=where)
        for what, size, where in sizes
        if size and where
    )


def checkpoint_items(model: RoleModel, phases: tuple[str, ...]) -> tuple[MemoryItem, ...]:
    """The copy of a saved role's state, where devices and host share their memory."""
    if not model.is_saved:
        return ()
    number_bytes = model.stored_bytes + (ADAM_BYTES if model.is_trained else 0)
    size = shard_bytes(model.num_parameters, model.mesh.data, number_bytes)
    item = MemoryItem(role=model.role, what=MemoryWhat.CHECKPOINT, bytes=size, phases=phases)
    return (item,)


def process_item(device: Device, phases: tuple[str, ...]) -> MemoryItem:
    """What a rank needs before it has done anything."""
    return MemoryItem(
        role=None, what=MemoryWhat.OVERHEAD, bytes=PROCESS_BYTES[device], phases=phases
    )


def standby_item(devices_per_node: int, phases: tuple[str, ...]) -> MemoryItem:
    """A device's share of the process that stands by on its node, where ranks use its memory."""
    return MemoryItem(
        role=None,
        what=MemoryWhat.STANDBY,
        bytes=-(-STANDBY_BYTES // devices_per_node),
        phases=phases,
    )
