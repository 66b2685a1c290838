"""Tiny models in Hugging Face format of every family that is mapped to Megatron's layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    MistralConfig,
    PretrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
)

VOCABULARY = 300
"""No multiple of 64: padded to 320 rows, of which the second of two tensor ranks has 140."""

_SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "eos_token_id": 7,
    "bos_token_id": None,
    "pad_token_id": None,
    "dtype": "float32",
    "attention_dropout": 0.5,  # engines must never drop anything out
}
_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 5000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}

PLAIN, TIED, WIDE = "llama", "llama, tied", "qwen3, tied, wide heads"
CONFIGS: Mapping[str, Callable[[], PretrainedConfig]] = {
    PLAIN: lambda: LlamaConfig(**_SIZES),
    TIED: lambda: LlamaConfig(**_SIZES, rope_parameters=_LLAMA3, tie_word_embeddings=True),
    "mistral, no groups": lambda: MistralConfig(
        **(_SIZES | {"num_key_value_heads": 4}), sliding_window=None
    ),
    "qwen2": lambda: Qwen2Config(**_SIZES),
    WIDE: lambda: Qwen3Config(
        **(_SIZES | {"num_hidden_layers": 4}), head_dim=32, tie_word_embeddings=True
    ),
}


def make_model(kind: str) -> PreTrainedModel:
    """A model all of whose parameters are random, norms and biases included."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(CONFIGS[kind](), dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
    return model.eval()


def write_model(kind: str, folder: Path, shard_size: str = "5GB") -> Path:
    """Write such a model; in several files if they are to be small."""
    make_model(kind).save_pretrained(folder, max_shard_size=shard_size)
    return folder
