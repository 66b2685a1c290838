"""Architecture: reads a Hugging Face config for Megatron's layers.

Refuses models that Megatron's layers cannot build or a mesh cannot cut, before any allocation.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rlhf_api.spec.model_cut import uneven_pipeline, uneven_tensor
from rlhf_runtime.engines.megatron.family import (
    EMBEDDING,
    FAMILIES,
    FINAL_NORM,
    LAYER_NAME,
    LAYER_PATH,
    OUTPUT,
    SCALAR_OUTPUT,
    TIED_OUTPUT,
    Family,
    Parameter,
    Weight,
    WeightSplit,
)
from rlhf_runtime.engines.sharing import has_full_attention
from rlhf_runtime.errors import UnsupportedModel
from rlhf_sizing.costs import attention_width
from rlhf_sizing.weights import padded_vocabulary

ROTARY_TYPES = ("default", "linear", "llama3")
"""Supported rotary embeddings: frequencies do not depend on the length, attention is not
scaled."""


@dataclass(frozen=True)
class Architecture:
    """A causal language model of a registered family."""

    family: Family
    num_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    """Heads of keys and values; a group of query heads shares each."""
    head_size: int
    hidden_size: int
    intermediate_size: int
    vocabulary_size: int
    """Without padding."""
    norm_epsilon: float
    is_tied: bool
    """True if the output projection is the embedding."""
    has_scalar_head: bool = False
    """True if a layer with one number per token replaces the output projection."""

    @staticmethod
    def from_config(config: Any, value_head: bool = False) -> Architecture:
        """Read a transformers config.

        Args:
            config: of the model.
            value_head: True if a scalar head replaces the output projection.

        Raises:
            UnsupportedModel: no mapping for the family, or a setting that Megatron's layers lack.
        """
        family = FAMILIES.get(config.model_type)
        if family is None:
            raise UnsupportedModel(
                f"Megatron's layers are not mapped for this family: got model_type "
                f"{config.model_type!r}, allowed {', '.join(sorted(FAMILIES))}; train it with the "
                "engine FSDP, or add the family (docs/guides/add-a-model-family.md)"
            )
        _check_settings(config, family)
        heads = config.num_attention_heads
        return Architecture(
            family=family,
            num_layers=config.num_hidden_layers,
            num_attention_heads=heads,
            num_key_value_heads=config.num_key_value_heads or heads,
            head_size=getattr(config, "head_dim", None) or config.hidden_size // heads,
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            vocabulary_size=config.vocab_size,
            norm_epsilon=config.rms_norm_eps,
            is_tied=bool(config.tie_word_embeddings) and not value_head,
            has_scalar_head=value_head,
        )

    @property
    def sizes(self) -> Mapping[str, int]:
        """Lengths of dimensions, by the names in `Weight.shape`."""
        return {
            "vocabulary": self.vocabulary_size,
            "hidden": self.hidden_size,
            "intermediate": self.intermediate_size,
            "query": self.num_attention_heads * self.head_size,
            "key": self.num_key_value_heads * self.head_size,
            "head": self.head_size,
            "one": 1,
        }

    @property
    def width(self) -> float:
        """Width by which a sequence's cost is counted (`attention_width`)."""
        sizes = self.sizes
        return attention_width(
            self.hidden_size, self.intermediate_size, sizes["query"], sizes["key"]
        )

    @property
    def output(self) -> Parameter:
        """The parameter of the output layer."""
        if self.has_scalar_head:
            return SCALAR_OUTPUT
        return TIED_OUTPUT if self.is_tied else OUTPUT

    def parameters(self) -> Iterator[tuple[str, Parameter, int | None]]:
        """All parameters of a full model: Megatron's path, its mapping, and its layer.

        The layer is counted from 0 over all stages; None at the model's ends.
        """
        yield EMBEDDING.path, EMBEDDING, None
        for layer in range(self.num_layers):
            for parameter in self.family.layer:
                yield f"{LAYER_PATH}{layer}.{parameter.path}", parameter, layer
        yield FINAL_NORM.path, FINAL_NORM, None
        yield self.output.path, self.output, None

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The full shape of every weight, by Hugging Face name."""
        return {
            full_name(weight, layer): self.full_shape(weight)
            for _, parameter, layer in self.parameters()
            for weight in parameter.weights
        }

    def copies(self, tensor: int, pipeline: int) -> dict[str, int]:
        """The number of ranks of one replica that hold each element, by Hugging Face name.

        Norms are on every tensor rank of their stage; a tied embedding is on the first stage and on
        the last.
        """
        copies = {
            full_name(weight, layer): tensor if parameter.split is WeightSplit.REPLICATED else 1
            for _, parameter, layer in self.parameters()
            for weight in parameter.weights
        }
        if self.is_tied and pipeline > 1:
            copies[EMBEDDING.weights[0].name] = 2
        return copies

    def full_shape(self, weight: Weight) -> tuple[int, ...]:
        """The full shape of a weight."""
        return tuple(self.sizes[length] for length in weight.shape)

    def padded_vocabulary(self, tensor: int) -> int:
        """Rows of embedding and output projection over all tensor ranks."""
        # Padded as vLLM does, so that a rank's rows lie within those of a generating rank.
        return padded_vocabulary(self.vocabulary_size, tensor)

    def check_cut(self, tensor: int, pipeline: int) -> None:
        """Refuse a mesh that does not divide the model evenly.

        Raises:
            UnsupportedModel: with the arithmetic.
        """
        for rule in (*uneven_tensor(self, tensor), *uneven_pipeline(self, pipeline)):
            raise UnsupportedModel(
                f"the mesh does not divide the model: got {rule.got}, allowed {rule.allowed}; "
                "change training.parallelism of the role"
            )


def full_name(weight: Weight, layer: int | None) -> str:
    """A weight's Hugging Face name; layers count from 0."""
    return weight.name if layer is None else f"{LAYER_NAME}{layer}.{weight.name}"


def _check_settings(config: Any, family: Family) -> None:
    wrong = {
        name: getattr(config, name)
        for name, value in family.fixed.items()
        if getattr(config, name, value) != value
    }
    for name, value in wrong.items():
        raise UnsupportedModel(
            f"Megatron's layers lack a setting of this model: got {name} = {value!r}, allowed "
            f"{family.fixed[name]!r} for {config.model_type}; train it with the engine FSDP"
        )
    if not has_full_attention(config):
        raise UnsupportedModel(
            "attention that is limited to some earlier tokens: got sliding_window = "
            f"{getattr(config, 'sliding_window', None)}, layer_types = "
            f"{sorted(set(getattr(config, 'layer_types', None) or ()))}, allowed full attention in "
            "every layer; train it with the engine FSDP"
        )
    rotary = config.rope_parameters
    kind, part = rotary.get("rope_type", "default"), rotary.get("partial_rotary_factor", 1.0)
    if kind not in ROTARY_TYPES or part != 1.0:
        raise UnsupportedModel(
            f"a rotary embedding that Megatron's layers lack: got rope_type {kind!r} of "
            f"{part:.4g} of a head, allowed {', '.join(ROTARY_TYPES)} of full heads; train the "
            "model with the engine FSDP"
        )
