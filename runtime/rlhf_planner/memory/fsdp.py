"""Memory of one device under FSDP2: states are sharded over ranks, layers are gathered in turn."""

from __future__ import annotations

from rlhf_api.plan import ModelHead
from rlhf_api.plan_memory import MemoryUse
from rlhf_planner.memory.role_model import (
    ADAM_BYTES,
    FLOAT32_BYTES,
    Item,
    RoleModel,
    RolePhases,
    kept_token_bytes,
    shard_bytes,
)
from rlhf_sizing.costs import block_bytes
from rlhf_sizing.shape import DecoderShape


def stored_bytes(model: RoleModel) -> int:
    """Bytes of a stored weight: trained weights are float32."""
    return FLOAT32_BYTES if model.is_trained else model.compute_bytes


def root_parameters(model: RoleModel) -> int:
    """Parameters outside the blocks; they stay gathered for a full pass."""
    if model.head is ModelHead.SCALAR:
        return model.shape.critic_root_parameters
    return model.shape.root_parameters


def layer_activation_bytes(shape: DecoderShape, compute_bytes: int) -> int:
    """Bytes that one block keeps per token for its backward pass, without recomputation.

    Equal, to the byte, to the count of PyTorch's saved-tensor hooks for a Hugging Face Llama with
    fused attention (13,336 bytes in float32 and 7,192 in bfloat16 for TinyLlama).
    """
    heads_norm = shape.query_size + shape.key_value_size if shape.query_key_norm else 0
    normalized = shape.norms_per_layer * shape.hidden_size + heads_norm
    # The input in float32, and two tensors in the compute format.
    norms = normalized * (FLOAT32_BYTES + 2 * compute_bytes)
    # Queries, keys, values and the output.
    attention = 2 * (shape.query_size + shape.key_value_size) * compute_bytes
    # Gate, up, the activated gate and the product.
    feed_forward = 4 * shape.intermediate_size * compute_bytes
    # One float32 per norm and per head.
    statistics = (shape.norms_per_layer + shape.num_attention_heads) * FLOAT32_BYTES
    return norms + attention + feed_forward + statistics


def training_activation_bytes(model: RoleModel) -> int:
    """Bytes of a micro-batch's activations when its backward pass begins."""
    layer = layer_activation_bytes(model.shape, model.compute_bytes)
    layers = model.shape.num_layers
    # Recomputation keeps the inputs of all blocks, and all of the block at work.
    if model.recompute:
        kept = layers * model.shape.hidden_size * model.compute_bytes + layer
    else:
        kept = layers * layer
    return model.peak_tokens * kept


def logits_bytes(model: RoleModel) -> int:
    """Bytes of the head of a language model: a block of logits, its input and the input's
    gradient."""
    if model.head is ModelHead.SCALAR:
        return 0
    block = block_bytes(model.device, model.peak_tokens, model.shape.vocab_size)
    block += kept_token_bytes(model, model.shape.vocab_size)
    # The input and its gradient in the compute format, and the gradient's sum over blocks in
    # float32.
    inputs = model.shape.hidden_size * (FLOAT32_BYTES + 2 * model.compute_bytes)
    return block + model.peak_tokens * inputs


def mask_bytes(model: RoleModel, num_layers: int) -> int:
    """Upper bound of the bytes of a micro-batch's attention masks.

    Args:
        model: the role.
        num_layers: layers that keep it at once.
    """
    # The bound assumes that every response shares its prompt. There is a mask of booleans, and per
    # layer one in the compute format that attention adds to scores.
    pairs = model.peak_tokens * model.longest_shared_tokens
    return pairs * (1 + num_layers * model.compute_bytes)


def is_sharded(model: RoleModel, num_shards: int) -> bool:
    """True if FSDP manages the weights."""
    # A single rank that computes in the stored format keeps ordinary weights.
    return num_shards > 1 or model.compute_bytes != stored_bytes(model)


def gathered_bytes(model: RoleModel, num_shards: int) -> int:
    """Bytes of the layers gathered at once: the root, one block at work, one prefetched."""
    if not is_sharded(model, num_shards):
        return 0
    return (root_parameters(model) + 2 * model.shape.block_parameters) * model.compute_bytes


def gradient_bytes(model: RoleModel, num_shards: int) -> int:
    """Bytes of the sharded float32 gradients and of those that are not reduced yet."""
    sharded = shard_bytes(model.num_parameters, num_shards, FLOAT32_BYTES)
    if not is_sharded(model, num_shards):
        return sharded
    # Gradients are reduced block by block with every micro-batch: only the root's and one block's
    # are unsharded at a time.
    unsharded = root_parameters(model) + model.shape.block_parameters
    return sharded + unsharded * model.compute_bytes


def fsdp_items(model: RoleModel, phases: RolePhases) -> list[Item]:
    """Memory of a role on each of its devices, without generation."""
    num_shards, parameters = model.mesh.data, model.num_parameters
    layer = layer_activation_bytes(model.shape, model.compute_bytes)
    layers = model.shape.num_layers
    always, infer, train = phases.all, phases.infer, phases.train
    items: list[Item] = []
    if model.is_trained:
        items += [
            (MemoryUse.MASTER_WEIGHTS, shard_bytes(parameters, num_shards, FLOAT32_BYTES), always),
            (MemoryUse.OPTIMIZER, shard_bytes(parameters, num_shards, ADAM_BYTES), always),
            (MemoryUse.GRADIENTS, gradient_bytes(model, num_shards), train),
        ]
    else:
        stored = shard_bytes(parameters, num_shards, stored_bytes(model))
        items.append((MemoryUse.WEIGHTS, stored, always))
    return [
        *items,
        (MemoryUse.GATHERED, gathered_bytes(model, num_shards), infer + train),
        (MemoryUse.ACTIVATIONS, model.peak_tokens * layer, infer),
        (MemoryUse.ACTIVATIONS, training_activation_bytes(model), train),
        (MemoryUse.LOGITS, logits_bytes(model), infer + train),
        (MemoryUse.MASKS, mask_bytes(model, 1), infer),
        (MemoryUse.MASKS, mask_bytes(model, 1 if model.recompute else layers), train),
    ]


def fsdp_checkpoint_bytes(model: RoleModel) -> int:
    """Bytes of the copy of a saved role's state: a rank's own shard."""
    number_bytes = stored_bytes(model) + (ADAM_BYTES if model.is_trained else 0)
    return shard_bytes(model.num_parameters, model.mesh.data, number_bytes)
