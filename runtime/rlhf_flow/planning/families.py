"""What distinguishes the layers of a family of models, by `model_type` in config.json."""

from __future__ import annotations

from collections.abc import Mapping

from rlhf_api.spec.models import ModelFamily

FAMILIES: Mapping[ModelFamily, str] = {
    ModelFamily.LLAMA: "llama",
    ModelFamily.MISTRAL: "mistral",
    ModelFamily.QWEN2: "qwen2",
    ModelFamily.QWEN3: "qwen3",
    ModelFamily.GEMMA: "gemma",
    ModelFamily.GEMMA2: "gemma2",
    ModelFamily.GEMMA3: "gemma3_text",
}
"""`model_type` of the families that a manifest can name."""
MODEL_TYPES = frozenset(FAMILIES.values())
"""Values of `model_type` whose layers are known here."""
QKV_BIAS = frozenset({"qwen2"})
"""Query, key and value projections have biases."""
QUERY_KEY_NORM = frozenset({"qwen3", "gemma3_text"})
"""Queries and keys are normalized per head."""
TIED_BY_DEFAULT = frozenset({"gemma", "gemma2", "gemma3_text"})
"""The output projection shares the embedding's weights where config.json does not say."""
_FOUR_NORMS = frozenset({"gemma2", "gemma3_text"})


def norms_per_layer(model_type: str | None) -> int:
    """Norms over the hidden size in a block: four with those after attention and feed-forward."""
    return 4 if model_type in _FOUR_NORMS else 2
