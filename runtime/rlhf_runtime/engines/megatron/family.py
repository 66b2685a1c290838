"""Which of Megatron's parameters hold which of Hugging Face's weights: data, per model family.

A family is added here (docs/guides/add-a-model-family.md). Everything else that knows weights by
name derives from it: views, loading, saving, the check that nothing is missing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum


class Cut(Enum):
    """How tensor ranks share a parameter."""

    WHOLE = "each holds all of it"
    VOCABULARY = "each holds as many rows, after the vocabulary was padded"
    GROUPS = "each holds whole query groups: rows of their queries, then of their key and value"
    PAIRS = "each holds rows of the first weight, then as many of the second"
    COLUMNS = "each holds as many columns"


@dataclass(frozen=True)
class Weight:
    """A weight of Hugging Face's."""

    name: str
    """In a layer, or in the model."""
    shape: tuple[str, ...]
    """The lengths of its dimensions, as `Architecture.sizes` names them."""


@dataclass(frozen=True)
class Parameter:
    """A parameter of Megatron's, and the weights that lie in it."""

    path: str
    """In a layer, or in the model."""
    cut: Cut
    weights: tuple[Weight, ...]


@dataclass(frozen=True)
class Family:
    """Models of one `model_type`."""

    layer: tuple[Parameter, ...]
    """Of each decoder layer; the ends of the model are the same for all families."""
    query_key_value_bias: bool = False
    """Whether queries, keys and values have biases."""
    query_key_norms: bool = False
    """Whether the heads of queries and keys are normalized."""
    fixed: Mapping[str, object] = field(default_factory=dict)
    """Settings of config.json that Megatron's layers know with this value only."""


EMBEDDING = Parameter(
    "embedding.word_embeddings.weight",
    Cut.VOCABULARY,
    (Weight("model.embed_tokens.weight", ("vocabulary", "hidden")),),
)
FINAL_NORM = Parameter(
    "decoder.final_layernorm.weight", Cut.WHOLE, (Weight("model.norm.weight", ("hidden",)),)
)
OUTPUT = Parameter(
    "output_layer.weight",
    Cut.VOCABULARY,
    (Weight("lm_head.weight", ("vocabulary", "hidden")),),
)
SCALAR_OUTPUT = Parameter(OUTPUT.path, Cut.WHOLE, (Weight("lm_head.weight", ("one", "hidden")),))
"""In the place of the output projection: one number for each token."""
TIED_OUTPUT = Parameter(OUTPUT.path, OUTPUT.cut, EMBEDDING.weights)
"""The last stage's copy of the embedding, where the first stage is another one."""

LAYER_PATH, LAYER_NAME = "decoder.layers.", "model.layers."
"""What a layer's number follows in Megatron's paths and in Hugging Face's names."""


def _query_key_value(kind: str, *more: str) -> Parameter:
    names = {"q_proj": "query", "k_proj": "key", "v_proj": "key"}
    weights = [Weight(f"self_attn.{name}.{kind}", (rows, *more)) for name, rows in names.items()]
    return Parameter(f"self_attention.linear_qkv.{kind}", Cut.GROUPS, tuple(weights))


LAYER = (
    Parameter(
        "input_layernorm.weight", Cut.WHOLE, (Weight("input_layernorm.weight", ("hidden",)),)
    ),
    _query_key_value("weight", "hidden"),
    Parameter(
        "self_attention.linear_proj.weight",
        Cut.COLUMNS,
        (Weight("self_attn.o_proj.weight", ("hidden", "query")),),
    ),
    Parameter(
        "pre_mlp_layernorm.weight",
        Cut.WHOLE,
        (Weight("post_attention_layernorm.weight", ("hidden",)),),
    ),
    Parameter(
        "mlp.linear_fc1.weight",
        Cut.PAIRS,
        (
            Weight("mlp.gate_proj.weight", ("intermediate", "hidden")),
            Weight("mlp.up_proj.weight", ("intermediate", "hidden")),
        ),
    ),
    Parameter(
        "mlp.linear_fc2.weight",
        Cut.COLUMNS,
        (Weight("mlp.down_proj.weight", ("hidden", "intermediate")),),
    ),
)
"""A layer of Llama's: no biases, a gated MLP, a norm before each half."""

QUERY_KEY_VALUE_BIAS = _query_key_value("bias")
QUERY_KEY_NORMS = tuple(
    Parameter(
        f"self_attention.{kind}_layernorm.weight",
        Cut.WHOLE,
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
