"""The planner's names of weights are those of transformers' models."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from rlhf_sizing.config import MODEL_TYPES, shape_from_config
from rlhf_sizing.weights import weight_shapes

SIZES: dict[str, Any] = {
    "num_hidden_layers": 2,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 70,
    "pad_token_id": None,
}


@pytest.mark.parametrize("is_tied", [True, False])
@pytest.mark.parametrize("model_type", sorted(MODEL_TYPES))
def test_names_and_shapes_are_those_of_transformers(model_type: str, is_tied: bool) -> None:
    config = AutoConfig.for_model(model_type, **SIZES, tie_word_embeddings=is_tied)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    expected = {name: tuple(each.shape) for name, each in model.named_parameters()}
    shape = shape_from_config(config.to_dict(), "here", "")
    assert weight_shapes(shape) == expected
    assert shape.num_parameters == model.num_parameters()
