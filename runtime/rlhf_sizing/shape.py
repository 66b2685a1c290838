"""Dimensions of a decoder and the exact counts that follow from them, by family of models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from rlhf_api.plan import ModelHead
from rlhf_api.spec.models import ModelFamily, ModelShape

# `model_type` of the families that a manifest can name.
FAMILIES: Mapping[ModelFamily, str] = {
    ModelFamily.LLAMA: "llama",
    ModelFamily.MISTRAL: "mistral",
    ModelFamily.QWEN2: "qwen2",
    ModelFamily.QWEN3: "qwen3",
    ModelFamily.GEMMA: "gemma",
    ModelFamily.GEMMA2: "gemma2",
    ModelFamily.GEMMA3: "gemma3_text",
}
# Values of `model_type` with supported layers.
MODEL_TYPES = frozenset(FAMILIES.values())
# Query, key and value projections have biases.
QKV_BIAS = frozenset({"qwen2"})
# Queries and keys are normalized per head.
QUERY_KEY_NORM = frozenset({"qwen3", "gemma3_text"})
# The output projection shares the embedding's weights unless config.json says otherwise.
TIED_BY_DEFAULT = frozenset({"gemma", "gemma2", "gemma3_text"})
_FOUR_NORMS = frozenset({"gemma2", "gemma3_text"})


def norms_per_layer(model_type: str | None) -> int:
    """Norms over the hidden size in a block: four with those after attention and feed-forward."""
    return 4 if model_type in _FOUR_NORMS else 2


@dataclass(frozen=True)
class DecoderShape:
    """A dense decoder with gated feed-forward layers and rotary positions.

    Linear layers have no biases except where a field says so; norms have a weight and no bias.
    """

    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    tied_embeddings: bool = False
    """True if the output projection shares the embedding's weights."""
    qkv_bias: bool = False
    """True if query, key and value projections have biases (Qwen 2)."""
    query_key_norm: bool = False
    """True if queries and keys are normalized per head (Qwen 3, Gemma 3)."""
    norms_per_layer: int = 2
    """Norms over the hidden size in a block: 2, or 4 with norms after attention and
    feed-forward."""
    family: str | None = field(default=None, compare=False)
    """`model_type` in config.json. None: unknown, as of a shape in a manifest."""

    @classmethod
    def from_spec(cls, shape: ModelShape) -> DecoderShape:
        """The shape in a manifest."""
        model_type = None if shape.family is None else FAMILIES[shape.family]
        return cls(
            num_layers=shape.num_layers,
            hidden_size=shape.hidden_size,
            intermediate_size=shape.intermediate_size,
            num_attention_heads=shape.num_attention_heads,
            num_key_value_heads=shape.num_key_value_heads,
            head_dim=shape.head_dim,
            vocab_size=shape.vocab_size,
            tied_embeddings=shape.tied_embeddings,
            qkv_bias=model_type in QKV_BIAS,
            query_key_norm=model_type in QUERY_KEY_NORM,
            norms_per_layer=norms_per_layer(model_type),
            family=model_type,
        )

    def to_spec(self) -> ModelShape:
        """The shape for a manifest."""
        # The family implies biases and norms, which a manifest's dimensions do not name.
        family = next((family_ for family_, name in FAMILIES.items() if name == self.family), None)
        return ModelShape(
            num_layers=self.num_layers,
            hidden_size=self.hidden_size,
            intermediate_size=self.intermediate_size,
            num_attention_heads=self.num_attention_heads,
            num_key_value_heads=self.num_key_value_heads,
            head_dim=self.head_dim,
            vocab_size=self.vocab_size,
            tied_embeddings=self.tied_embeddings,
            family=family,
        )

    @property
    def query_size(self) -> int:
        """Width of all query heads."""
        return self.num_attention_heads * self.head_dim

    @property
    def key_value_size(self) -> int:
        """Width of all key heads, or of all value heads."""
        return self.num_key_value_heads * self.head_dim

    @property
    def block_parameters(self) -> int:
        """Parameters of one block."""
        qkv = self.query_size + 2 * self.key_value_size
        attention = self.hidden_size * qkv + self.query_size * self.hidden_size
        bias = qkv if self.qkv_bias else 0
        head_norms = 2 * self.head_dim if self.query_key_norm else 0
        feed_forward = 3 * self.hidden_size * self.intermediate_size
        norms = self.norms_per_layer * self.hidden_size
        return attention + bias + head_norms + feed_forward + norms

    @property
    def embedding_parameters(self) -> int:
        """Parameters of the embedding."""
        return self.vocab_size * self.hidden_size

    @property
    def head_parameters(self) -> int:
        """Parameters of the output projection; 0 if it shares the embedding's."""
        return 0 if self.tied_embeddings else self.embedding_parameters

    @property
    def root_parameters(self) -> int:
        """Parameters outside the blocks: embedding, last norm, output projection."""
        return self.embedding_parameters + self.hidden_size + self.head_parameters

    @property
    def num_parameters(self) -> int:
        """All parameters of the language model."""
        return self.root_parameters + self.num_layers * self.block_parameters

    @property
    def critic_root_parameters(self) -> int:
        """Parameters outside the blocks of a critic: a value head in place of the projection."""
        return self.embedding_parameters + 2 * self.hidden_size

    @property
    def num_critic_parameters(self) -> int:
        """All parameters of a critic."""
        return self.critic_root_parameters + self.num_layers * self.block_parameters

    def parameters_with(self, head: ModelHead) -> int:
        """All parameters of a model that ends in a head."""
        return self.num_critic_parameters if head is ModelHead.SCALAR else self.num_parameters
