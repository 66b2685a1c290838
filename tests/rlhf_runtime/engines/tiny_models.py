"""Tiny models in Hugging Face format that differ in what engines must handle."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import (
    AutoModelForSequenceClassification,
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GraniteConfig,
    GraniteForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
    Qwen3ForCausalLM,
)
from transformers import Qwen2ForCausalLM as Qwen2

from rlhf_runtime.dataplane.columns import Column, pack

VOCABULARY = 300
"""No multiple of 64: vLLM pads it to 320 rows."""
END = 7
"""The token that ends a response."""
PADDING = 11
"""The token whose embedding transformers does not train; it stands among others here."""

TEXTLESS = (range(100, 103), range(293, VOCABULARY))
"""Tokens without a text where a test asks for some: a gap, and a padding of seven."""
TEXTLESS_IDS = [token for tokens in TEXTLESS for token in tokens]

LAYERS = 2
_SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "max_position_embeddings": 512,
    "eos_token_id": END,
    "bos_token_id": None,
    "pad_token_id": PADDING,
    "dtype": "float32",
    "attention_dropout": 0.5,  # engines must never drop anything out
}


def _llama() -> PreTrainedModel:
    """Every head has its own keys and values."""
    return LlamaForCausalLM(LlamaConfig(**_SIZES, num_key_value_heads=4, head_dim=32))


def _qwen2() -> PreTrainedModel:
    """Biases on queries, keys and values; two heads share keys and values."""
    return Qwen2(Qwen2Config(**_SIZES, num_key_value_heads=2))


def _wide() -> PreTrainedModel:
    """Large enough to be seen in a process's memory: 21 MB in float32."""
    sizes = _SIZES | {"hidden_size": 512, "intermediate_size": 1024}
    return LlamaForCausalLM(LlamaConfig(**sizes, num_key_value_heads=4))


def _tied() -> PreTrainedModel:
    """The output projection is the embedding; all heads share one pair of keys and values."""
    return LlamaForCausalLM(
        LlamaConfig(**_SIZES, num_key_value_heads=1, head_dim=32, tie_word_embeddings=True)
    )


def _tied_pairs() -> PreTrainedModel:
    """Tied, and cut by two tensor ranks: two heads share keys and values."""
    return LlamaForCausalLM(
        LlamaConfig(**_SIZES, num_key_value_heads=2, head_dim=32, tie_word_embeddings=True)
    )


def _granite() -> PreTrainedModel:
    """What the output projection gives is divided before anybody sees it."""
    return GraniteForCausalLM(GraniteConfig(**_SIZES, num_key_value_heads=2, logits_scaling=3.0))


def _gemma2() -> PreTrainedModel:
    """What the output projection gives is capped, far below what it gives here; one layer looks
    back only so far."""
    settings: dict[str, Any] = {
        "attn_logit_softcapping": None,
        "final_logit_softcapping": 0.5,
    }
    return Gemma2ForCausalLM(Gemma2Config(**_SIZES, **settings, num_key_value_heads=2, head_dim=32))


def _mistral() -> PreTrainedModel:
    """Layers look back only so far, farther than the longest sequence here."""
    return MistralForCausalLM(
        MistralConfig(**_SIZES, num_key_value_heads=2, head_dim=32, sliding_window=480)
    )


def _qwen3() -> PreTrainedModel:
    """Queries and keys are normalized head by head; heads are wider than a share of the model."""
    return Qwen3ForCausalLM(Qwen3Config(**_SIZES, num_key_value_heads=2, head_dim=64))


def _gemma3() -> PreTrainedModel:
    """Embeddings are scaled, norms stand behind layers, too, and every second layer looks back only
    so far: less than the longest sequence here."""
    layers = ["sliding_attention", "full_attention"]
    settings: dict[str, Any] = {"sliding_window": 64, "layer_types": layers}
    config = Gemma3TextConfig(**_SIZES, **settings, num_key_value_heads=2, head_dim=32)
    return Gemma3ForCausalLM(config)


MODELS: Mapping[str, Callable[[], PreTrainedModel]] = {
    "llama": _llama,
    "qwen2": _qwen2,
    "tied": _tied,
}
HANDED_OVER: Mapping[str, Callable[[], PreTrainedModel]] = {"tied pairs": _tied_pairs}
"""From tensor ranks in several stages."""
TRAINED_ONLY: Mapping[str, Callable[[], PreTrainedModel]] = {
    "granite": _granite,
    "gemma2": _gemma2,
}
"""That nothing generates with here."""
GENERATING: Mapping[str, Callable[[], PreTrainedModel]] = {
    "mistral": _mistral,
    "qwen3": _qwen3,
    "gemma3": _gemma3,
}
"""Other families that vLLM has, of which not everything is tried."""
LARGE: Mapping[str, Callable[[], PreTrainedModel]] = {"wide": _wide}
"""That is measured."""


def write_model(kind: str, folder: Path, seed: int = 0, favoured: Sequence[int] = ()) -> Path:
    """Write a model whose parameters are all random and large enough to make clear choices: where
    tokens are favoured, one of these."""
    torch.manual_seed(seed)
    model = {**MODELS, **HANDED_OVER, **TRAINED_ONLY, **GENERATING, **LARGE}[kind]()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.08)
        if favoured:
            # Opposite rows: one of both has a high logit, whatever the hidden state is.
            rows = torch.randn(len(favoured) // 2, model.config.hidden_size)
            model.get_output_embeddings().weight[list(favoured)] = torch.cat([rows, -rows])
    model.save_pretrained(folder)
    return folder


def write_classifier(kind: str, folder: Path, seed: int = 0) -> Path:
    """Write a reward model of the same sizes: a sequence classifier of one label."""
    torch.manual_seed(seed)
    config = MODELS[kind]().config
    config.num_labels = 1
    model = AutoModelForSequenceClassification.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.08)
    model.save_pretrained(folder)
    return folder


def ragged(lengths: list[int], seed: int) -> Column:
    """Random token ids in rows of the given lengths; none is the end token."""
    draw = np.random.default_rng(seed)
    return pack([draw.integers(END + 1, VOCABULARY, size=n) for n in lengths], np.int32)
