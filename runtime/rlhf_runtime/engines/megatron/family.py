"""Model families: the mapping from Hugging Face's weights to Megatron's parameters, as data.

Add a family here (docs/guides/add-a-model-family.md). Views, loading, saving and the check for
missing weights derive from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum


class WeightSplit(Enum):
    """Distribution of a parameter over tensor ranks."""

    REPLICATED = "every rank has all of it"
    VOCABULARY = "equally many rows per rank, after padding the vocabulary"
    GROUPS = "complete query groups per rank: rows of their queries, then of their key and value"
    PAIRS = "rows of the first weight, then as many of the second, per rank"
    COLUMNS = "equally many columns per rank"


@dataclass(frozen=True)
class Weight:
    """A Hugging Face weight."""

    name: str
    """Name within a layer, or within the model."""
    shape: tuple[str, ...]
    """Names of its dimensions' lengths in `Architecture.sizes`."""


@dataclass(frozen=True)
class Parameter:
    """A Megatron parameter, and the weights in it."""

    path: str
    """Path within a layer, or within the model."""
    split: WeightSplit
    weights: tuple[Weight, ...]


@dataclass(frozen=True)
class Family:
    """Models of one `model_type`."""

    layer: tuple[Parameter, ...]
    """Parameters of a decoder layer; all families share those outside of layers."""
    query_key_value_bias: bool = False
    """True if queries, keys and values have biases."""
    query_key_norms: bool = False
    """True if the heads of queries and keys are normalized."""
    fixed: Mapping[str, object] = field(default_factory=dict)
    """Settings of config.json that Megatron's layers support with this value only."""


EMBEDDING = Parameter(
    "embedding.word_embeddings.weight",
    WeightSplit.VOCABULARY,
    (Weight("model.embed_tokens.weight", ("vocabulary", "hidden")),),
)
FINAL_NORM = Parameter(
    "decoder.final_layernorm.weight",
    WeightSplit.REPLICATED,
    (Weight("model.norm.weight", ("hidden",)),),
)
OUTPUT = Parameter(
    "output_layer.weight",
    WeightSplit.VOCABULARY,
    (Weight("lm_head.weight", ("vocabulary", "hidden")),),
)
SCALAR_OUTPUT = Parameter(
    OUTPUT.path, WeightSplit.REPLICATED, (Weight("lm_head.weight", ("one", "hidden")),)
)
"""Scalar head, in the place of the output projection: one number per token."""
TIED_OUTPUT = Parameter(OUTPUT.path, OUTPUT.split, EMBEDDING.weights)
"""The last stage's copy of the embedding, if it is not the first stage."""

LAYER_PATH, LAYER_NAME = "decoder.layers.", "model.layers."
"""Prefixes of a layer's number in Megatron's paths and in Hugging Face's names."""


def _query_key_value(kind: str, *more: str) -> Parameter:
    names = {"q_proj": "query", "k_proj": "key", "v_proj": "key"}
    weights = [Weight(f"self_attn.{name}.{kind}", (rows, *more)) for name, rows in names.items()]
    return Parameter(f"self_attention.linear_qkv.{kind}", WeightSplit.GROUPS, tuple(weights))


LAYER = (
    Parameter(
        "input_layernorm.weight",
        WeightSplit.REPLICATED,
        (Weight("input_layernorm.weight", ("hidden",)),),
    ),
    _query_key_value("weight", "hidden"),
    Parameter(
        "self_attention.linear_proj.weight",
        WeightSplit.COLUMNS,
        (Weight("self_attn.o_proj.weight", ("hidden", "query")),),
    ),
    Parameter(
        "pre_mlp_layernorm.weight",
        WeightSplit.REPLICATED,
        (Weight("post_attention_layernorm.weight", ("hidden",)),),
    ),
    Parameter(
        "mlp.linear_fc1.weight",
        WeightSplit.PAIRS,
        (
            Weight("mlp.gate_proj.weight", ("intermediate", "hidden")),
            Weight("mlp.up_proj.weight", ("intermediate", "hidden")),
        ),
    ),
    Parameter(
        "mlp.linear_fc2.weight",
        WeightSplit.COLUMNS,
        (Weight("mlp.down_proj.weight", ("hidden", "intermediate")),),
    ),
)
"""A Llama layer: no biases, a gated MLP, a norm before attention and MLP."""

QUERY_KEY_VALUE_BIAS = _query_key_value("bias")
QUERY_KEY_NORMS = tuple(
    Parameter(
        f"self_attention.{kind}_layernorm.weight",
        WeightSplit.REPLICATED,
        (Weight(f"self_attn.{kind}_norm.weight", ("head",)),),
    )
    for kind in ("q", "k")
)

_SILU = {"hidden_act": "silu"}
_NO_BIASES = {**_SILU, "attention_bias": False, "mlp_bias": False}

FAMILIES: Mapping[str, Family] = {
    "llama": Family(LAYER, fixed=_NO_BIASES),
    "mistral": Family(LAYER, fixed=_SILU),
    "qwen2": Family((*LAYER, QUERY_KEY_VALUE_BIAS), query_key_value_bias=True, fixed=_SILU),
    "qwen3": Family((*LAYER, *QUERY_KEY_NORMS), query_key_norms=True, fixed=_NO_BIASES),
}
"""By `model_type` in config.json."""
