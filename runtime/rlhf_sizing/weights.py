"""Weights of a decoder by Hugging Face names, and their cuts over ranks for training and
generation.

A part is some rows and some columns of a matrix; a vector is a matrix of one column.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from rlhf_api.mesh import Mesh
from rlhf_api.spec.models import TrainingEngineType
from rlhf_sizing.shape import DecoderShape

# vLLM pads the vocabulary to a multiple of this.
VOCABULARY_MULTIPLE = 64
KEY_VALUE = ("k_proj", "v_proj")
ROWS = ("q_proj", *KEY_VALUE, "gate_proj", "up_proj")
COLUMNS = ("o_proj", "down_proj")
VOCABULARY = ("embed_tokens", "lm_head")


class Part(NamedTuple):
    """A rank's part of a weight; either range may be empty."""

    rows: range
    columns: range

    def overlap(self, other: Part) -> int:
        """Number of elements in both."""
        return _common(self.rows, other.rows) * _common(self.columns, other.columns)

    @property
    def num_elements(self) -> int:
        """Number of elements."""
        return len(self.rows) * len(self.columns)


def tensor_part(
    name: str, shape: Sequence[int], index: int, size: int, num_key_value_heads: int
) -> Part:
    """The part of a weight on one rank of a tensor group.

    Args:
        name: Hugging Face's.
        shape: of the full weight.
        index: of the rank in its group.
        size: ranks in the group; it divides what is cut.
        num_key_value_heads: if fewer than ranks, each is on several ranks.

    Returns:
        All of a weight that is not cut, such as a norm.
    """
    # Megatron and vLLM cut alike; they differ only in the arrangement of the parts.
    module, _, parameter = name.rpartition(".")
    kind = module.rpartition(".")[2]
    rows, columns = full_part(shape)
    if kind in KEY_VALUE and num_key_value_heads < size:
        return Part(_cut(rows, index * num_key_value_heads // size, num_key_value_heads), columns)
    if kind in ROWS:
        return Part(_cut(rows, index, size), columns)
    # A bias of these layers is added to the sum over ranks, so it is not cut.
    if kind in COLUMNS and parameter == "weight":
        return Part(rows, _cut(columns, index, size))
    if kind in VOCABULARY:
        share = padded_vocabulary(len(rows), size) // size
        return Part(rows[index * share : (index + 1) * share], columns)
    return Part(rows, columns)


def row_part(shape: Sequence[int], index: int, size: int) -> Part:
    """The part of a weight on one of FSDP's ranks; the last ones may have less, or nothing."""
    rows, columns = full_part(shape)
    return Part(_cut(rows, index, size), columns)


def full_part(shape: Sequence[int]) -> Part:
    """All of a weight."""
    rows, *columns = shape
    return Part(range(rows), range(*columns) if columns else range(1))


def padded_vocabulary(size: int, tensor: int) -> int:
    """Rows of an embedding or output projection over all ranks of a tensor group."""
    multiple = math.lcm(VOCABULARY_MULTIPLE, tensor)
    return -(-size // multiple) * multiple


def _cut(indices: range, index: int, num_parts: int) -> range:
    share = -(-len(indices) // num_parts)
    return indices[index * share : (index + 1) * share]


def _common(one: range, other: range) -> int:
    return max(0, min(one.stop, other.stop) - max(one.start, other.start))


EMBEDDING, FINAL_NORM, OUTPUT = "model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"
# Prefix of a layer's number.
LAYER = "model.layers."
NORMS = ("input_layernorm", "post_attention_layernorm")
# Additional norms of layers with four.
FEED_FORWARD_NORMS = ("pre_feedforward_layernorm", "post_feedforward_layernorm")


class Weights(NamedTuple):
    """Equal weights, such as one of every layer."""

    name: str
    """Hugging Face's name; in layers without the layer's prefix."""
    shape: tuple[int, ...]
    """The full shape of each."""
    number: int
    """Number of such weights."""

    def tensor_part(self, index: int, size: int, num_key_value_heads: int) -> Part:
        """The part of each weight on a rank of a tensor group."""
        return tensor_part(self.name, self.shape, index, size, num_key_value_heads)


# Weights, and a rank's part of each.
WeightsOnRank = tuple[Weights, Part]


def all_weights(shape: DecoderShape) -> tuple[Weights, ...]:
    """Every weight of a language model."""
    ends = [
        Weights(EMBEDDING, (shape.vocab_size, shape.hidden_size), 1),
        Weights(FINAL_NORM, (shape.hidden_size,), 1),
        Weights(OUTPUT, (shape.vocab_size, shape.hidden_size), 1),
    ]
    return (*layer_weights(shape), *(ends[:-1] if shape.tied_embeddings else ends))


def layer_weights(shape: DecoderShape) -> Iterator[Weights]:
    """The weights of all layers."""
    layers, hidden = shape.num_layers, shape.hidden_size
    query, key, middle = shape.query_size, shape.key_value_size, shape.intermediate_size
    for name, rows in {"q_proj": query, "k_proj": key, "v_proj": key}.items():
        yield Weights(f"self_attn.{name}.weight", (rows, hidden), layers)
        if shape.qkv_bias:
            yield Weights(f"self_attn.{name}.bias", (rows,), layers)
    yield Weights("self_attn.o_proj.weight", (hidden, query), layers)
    for name in ("gate_proj", "up_proj"):
        yield Weights(f"mlp.{name}.weight", (middle, hidden), layers)
    yield Weights("mlp.down_proj.weight", (hidden, middle), layers)
    for name in (*NORMS, *FEED_FORWARD_NORMS)[: shape.norms_per_layer]:
        yield Weights(f"{name}.weight", (hidden,), layers)
    for name in ("q_norm", "k_norm") if shape.query_key_norm else ():
        yield Weights(f"self_attn.{name}.weight", (shape.head_dim,), layers)


def weight_shapes(shape: DecoderShape) -> dict[str, tuple[int, ...]]:
    """The full shape of every weight of a language model, by Hugging Face name."""
    in_layers = [weights.name for weights in layer_weights(shape)]
    shapes: dict[str, tuple[int, ...]] = {}
    for weights in all_weights(shape):
        numbers = range(shape.num_layers) if weights.name in in_layers else (None,)
        for layer in numbers:
            name = weights.name if layer is None else f"{LAYER}{layer}.{weights.name}"
            shapes[name] = weights.shape
    return shapes


def num_training_layouts(mesh: Mesh, engine: TrainingEngineType) -> int:
    """Number of ranks of a training mesh with different weights; later ranks repeat these."""
    if engine is TrainingEngineType.FSDP:
        return mesh.data
    return mesh.tensor * mesh.pipeline


def trained_weights(
    shape: DecoderShape, mesh: Mesh, engine: TrainingEngineType, index: int
) -> Iterator[WeightsOnRank]:
    """The weights that a rank trains.

    Args:
        shape: of the model.
        mesh: of training.
        engine: FSDP's ranks share rows, Megatron's replicas have the same weights.
        index: of the rank in the mesh, from 0; below `num_training_layouts`.
    """
    if engine is TrainingEngineType.FSDP:
        for weights in all_weights(shape):
            yield weights, row_part(weights.shape, index, mesh.data)
        return
    stage, tensor = divmod(index, mesh.tensor)
    for weights in all_weights(shape):
        number = _on_stage(weights, stage, mesh.pipeline, shape.tied_embeddings)
        if number:
            part = weights.tensor_part(tensor, mesh.tensor, shape.num_key_value_heads)
            yield weights._replace(number=number), part


def _on_stage(weights: Weights, stage: int, num_stages: int, is_tied: bool) -> int:
    """Number of some weights on a pipeline stage."""
    is_first, is_last = stage == 0, stage == num_stages - 1
    if weights.name == EMBEDDING:
        # A tied embedding is the output projection, too.
        return int(is_first or (is_last and is_tied))
    if weights.name in (FINAL_NORM, OUTPUT):
        return int(is_last)
    return weights.number // num_stages
