"""Memory of one device under Megatron-core: a part of each layer of a pipeline stage.

The numbers are those of the fullest stage: the first or the last.
"""

from __future__ import annotations

from rlhf_api.calls import Phase
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
from rlhf_sizing.weights import padded_vocabulary


def vocabulary_rows(shape: DecoderShape, tensor: int) -> int:
    """Rows of the embedding on each tensor rank, padding included."""
    return padded_vocabulary(shape.vocab_size, tensor) // tensor


def layer_parameters(shape: DecoderShape, tensor: int) -> int:
    """Parameters of one layer on each tensor rank."""
    # Tensor parallelism cuts matrices and their biases, and replicates norms.
    head_norms = 2 * shape.head_dim if shape.query_key_norm else 0
    norms = shape.norms_per_layer * shape.hidden_size + head_norms
    return (shape.block_parameters - norms) // tensor + norms


def stage_parameters(model: RoleModel, stage: int) -> int:
    """Parameters of a pipeline stage on each tensor rank."""
    shape, mesh = model.shape, model.mesh
    table = vocabulary_rows(shape, mesh.tensor) * shape.hidden_size
    count = shape.num_layers // mesh.pipeline * layer_parameters(shape, mesh.tensor)
    if stage == 0:
        count += table
    # With tied embeddings both ends of the pipeline hold the table; a single stage holds it once.
    if stage == mesh.pipeline - 1:
        is_tied_here = model.head is ModelHead.LM and shape.tied_embeddings and stage == 0
        output = shape.hidden_size if model.head is ModelHead.SCALAR else table
        count += shape.hidden_size + (0 if is_tied_here else output)
    return count


def layer_token_bytes(model: RoleModel) -> int:
    """Bytes that one layer keeps per token for its backward pass, without recomputation.

    Equal, to the byte, to the count of PyTorch's saved-tensor hooks for a `Stage` on CPUs.
    """
    shape, number, tensor = model.shape, model.compute_bytes, model.mesh.tensor
    # Each norm: its input and the normalized one in float32, its output in the compute format, and
    # a float32 for each row.
    norms = shape.norms_per_layer * (
        shape.hidden_size * (2 * FLOAT32_BYTES + number) + FLOAT32_BYTES
    )
    heads, width = shape.num_attention_heads, shape.query_size + shape.key_value_size
    # Attention: the fused projections, rotated queries and keys, the output, and a float32 for each
    # head. Feed-forward: gate, up, the activated gate, up again and the product.
    cut = 3 * width * number + heads * FLOAT32_BYTES + 5 * shape.intermediate_size * number
    if shape.query_key_norm:
        # In float32 their input is the projections, which are kept already.
        copies = 1 if number == FLOAT32_BYTES else 2
        cut += (copies * width + heads + shape.num_key_value_heads) * FLOAT32_BYTES
    # Cosines and sines for queries and keys. Tensor ranks never share them; norms only with
    # sequence parallelism.
    angles = 4 * shape.head_dim * number
    return -(-norms // _sequence_parts(model)) + -(-cut // tensor) + angles


def activation_bytes(model: RoleModel, stage: int) -> int:
    """Bytes of the activations on a stage when a backward pass begins, of all micro-batches in
    flight."""
    # With recomputation: inputs of layers, and all of one layer of one micro-batch.
    kept = _layer_tokens_in_flight(model, stage) * _kept_token_bytes(model)
    return kept + (model.peak_tokens * layer_token_bytes(model) if model.recompute else 0)


def micro_batch_bytes(model: RoleModel) -> int:
    """Bytes that a stage keeps of one micro-batch from its forward pass to its backward pass."""
    layers = model.shape.num_layers // model.mesh.pipeline
    return model.peak_tokens * layers * _kept_token_bytes(model)


def _kept_token_bytes(model: RoleModel) -> int:
    """Bytes of a token that a layer keeps: with recomputation only its input."""
    if not model.recompute:
        return layer_token_bytes(model)
    return -(-model.shape.hidden_size * model.compute_bytes // _sequence_parts(model))


def logits_bytes(model: RoleModel, stage: int, *, with_gradients: bool) -> int:
    """Bytes of the output layer of one micro-batch."""
    shape, tokens, number = model.shape, model.peak_tokens, model.compute_bytes
    own = min(shape.vocab_size, vocabulary_rows(shape, model.mesh.tensor))
    if model.head is ModelHead.SCALAR or stage != model.mesh.pipeline - 1:
        # The first stage's embedding gets a gradient of all its rows.
        return own * shape.hidden_size * number if with_gradients and stage == 0 else 0
    norm = -(-shape.hidden_size * (2 * FLOAT32_BYTES + number) // _sequence_parts(model))
    # The layer's input after the last norm, of all tokens and of those that predict.
    forward = tokens * (norm + 2 * shape.hidden_size * number)
    # A block of logits over this tensor rank's part of the vocabulary.
    block = block_bytes(model.device, tokens, own) + kept_token_bytes(model, own)
    if not with_gradients:
        return block + forward
    # Of the input, summed in float32; of the layer's weights, with and without padding.
    gradients = tokens * (FLOAT32_BYTES + number) + 2 * own * number
    return block + forward + shape.hidden_size * gradients


def gathered_bytes(model: RoleModel) -> int:
    """Bytes of the buffer in which tensor ranks gather a shared sequence."""
    # One buffer serves all layers, and Megatron never releases it.
    if model.mesh.tensor == 1 or not model.sequence_parallel:
        return 0
    return model.peak_tokens * model.shape.hidden_size * model.compute_bytes


def masks_bytes(model: RoleModel, layer_tokens: int) -> int:
    """Upper bound of the bytes of attention masks.

    Args:
        model: the role.
        layer_tokens: sum over layers of the tokens whose mask is kept.
    """
    # A mask of booleans per micro-batch, and per layer one that attention adds to scores.
    longest = model.longest_shared_tokens
    return (model.peak_tokens + layer_tokens * model.compute_bytes) * longest


def megatron_items(model: RoleModel, phases: RolePhases) -> list[Item]:
    """Memory of a role on each of its devices, without generation."""
    # The first stage has the embedding and the most micro-batches in flight, the last the output
    # layer and the logits. Each phase is maximized by itself.
    ends = {0, model.mesh.pipeline - 1}
    infer = max((_forward(model, stage) for stage in ends), key=sum)
    train = max((_forward_and_backward(model, stage) for stage in ends), key=sum)
    uses = (MemoryUse.ACTIVATIONS, MemoryUse.LOGITS, MemoryUse.MASKS)
    return [
        *_states(model, phases.all, phases.derived),
        (MemoryUse.GRADIENTS, _fullest(model) * FLOAT32_BYTES, phases.train),
        (MemoryUse.GATHERED, gathered_bytes(model), phases.all),
        *((what, size, phases.infer) for what, size in zip(uses, infer, strict=True)),
        *((what, size, phases.train) for what, size in zip(uses, train, strict=True)),
    ]


def megatron_checkpoint_bytes(model: RoleModel) -> int:
    """Bytes of the copy of a saved role's state: a rank's float32 weights and moments, or the
    weights of a frozen role."""
    kinds = (MemoryUse.MASTER_WEIGHTS, MemoryUse.OPTIMIZER)
    saved = kinds if model.is_trained else (MemoryUse.WEIGHTS,)
    return sum(size for what, size, _ in _states(model, (), ()) if what in saved)


def _states(model: RoleModel, phases: tuple[Phase, ...], derived: tuple[Phase, ...]) -> list[Item]:
    """Permanent state, unless it is offloaded.

    Args:
        model: the role.
        phases: phases with the role on its devices.
        derived: phases with the state that is derived from master weights.
    """
    count = _fullest(model)
    if not model.is_trained:
        return [(MemoryUse.WEIGHTS, count * model.compute_bytes, phases)]
    sharing = model.mesh.data if model.distributed_optimizer else 1
    optimizer = (MemoryUse.OPTIMIZER, shard_bytes(count, sharing, ADAM_BYTES), phases)
    if model.compute_bytes == FLOAT32_BYTES:  # weights are their own masters
        return [(MemoryUse.MASTER_WEIGHTS, count * FLOAT32_BYTES, phases), optimizer]
    masters = shard_bytes(count, sharing, FLOAT32_BYTES)
    weights = (MemoryUse.WEIGHTS, count * model.compute_bytes, derived)
    return [weights, (MemoryUse.MASTER_WEIGHTS, masters, phases), optimizer]


def _fullest(model: RoleModel) -> int:
    """Parameters on each rank of the largest stage."""
    return max(stage_parameters(model, stage) for stage in (0, model.mesh.pipeline - 1))


def _forward(model: RoleModel, stage: int) -> tuple[int, int, int]:
    """Activations, logits and masks of a forward pass, which keeps nothing."""
    return (
        model.peak_tokens * layer_token_bytes(model),
        logits_bytes(model, stage, with_gradients=False),
        masks_bytes(model, model.peak_tokens),
    )


def _forward_and_backward(model: RoleModel, stage: int) -> tuple[int, int, int]:
    """Activations, logits and masks of training."""
    at_once = model.peak_tokens if model.recompute else _layer_tokens_in_flight(model, stage)
    return (
        activation_bytes(model, stage),
        logits_bytes(model, stage, with_gradients=True),
        masks_bytes(model, at_once),
    )


def _layer_tokens_in_flight(model: RoleModel, stage: int) -> int:
    """Sum over a stage's layers of the tokens whose backward pass is still to come."""
    # In the schedule 1F1B a stage keeps one micro-batch per stage from this one on, unless there
    # are fewer.
    pipeline = model.mesh.pipeline
    tokens = min((pipeline - stage) * model.peak_tokens, model.batch_tokens)
    return tokens * (model.shape.num_layers // pipeline)


def _sequence_parts(model: RoleModel) -> int:
    """Number of parts into which tensor ranks cut unsharded activations."""
    return model.mesh.tensor if model.sequence_parallel else 1
