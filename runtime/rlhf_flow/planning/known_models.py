"""Dimensions of well-known models, by Hugging Face id, so that jobs can be planned offline.

Parameter counts that follow from them are tested against the published ones. Source: each model's
config.json.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from rlhf_api.spec.models import BuiltinModel
from rlhf_flow.planning.shapes import DecoderShape


def _llama(layers: int, hidden: int, middle: int, heads: int, kv: int, dim: int) -> DecoderShape:
    return DecoderShape(layers, hidden, middle, heads, kv, dim, vocab_size=128256, family="llama")


def _qwen2(layers: int, hidden: int, middle: int, heads: int, kv: int, vocab: int) -> DecoderShape:
    dim = hidden // heads
    return DecoderShape(
        layers, hidden, middle, heads, kv, dim, vocab_size=vocab, qkv_bias=True, family="qwen2"
    )


def _qwen3(layers: int, hidden: int, middle: int, heads: int, kv: int = 8) -> DecoderShape:
    return DecoderShape(
        layers,
        hidden,
        middle,
        heads,
        kv,
        128,
        vocab_size=151936,
        query_key_norm=True,
        family="qwen3",
    )


def _gemma2(layers: int, hidden: int, middle: int, heads: int, kv: int, dim: int) -> DecoderShape:
    return DecoderShape(
        layers,
        hidden,
        middle,
        heads,
        kv,
        dim,
        vocab_size=256000,
        tied_embeddings=True,
        norms_per_layer=4,
        family="gemma2",
    )


def _tied(shape: DecoderShape) -> DecoderShape:
    return replace(shape, tied_embeddings=True)


_LLAMA_8B = _llama(32, 4096, 14336, 32, 8, 128)
_LLAMA_70B = _llama(80, 8192, 28672, 64, 8, 128)
_LLAMA_405B = _llama(126, 16384, 53248, 128, 8, 128)
_LLAMA_1B = _tied(_llama(16, 2048, 8192, 32, 8, 64))
_LLAMA_3B = _tied(_llama(28, 3072, 8192, 24, 8, 128))
_MISTRAL_7B = DecoderShape(32, 4096, 14336, 32, 8, 128, vocab_size=32000, family="mistral")
_MISTRAL_7B_V3 = replace(_MISTRAL_7B, vocab_size=32768)

_QWEN25 = {
    "0.5B": _tied(_qwen2(24, 896, 4864, 14, 2, 151936)),
    "1.5B": _tied(_qwen2(28, 1536, 8960, 12, 2, 151936)),
    "3B": _tied(_qwen2(36, 2048, 11008, 16, 2, 151936)),
    "7B": _qwen2(28, 3584, 18944, 28, 4, 152064),
    "14B": _qwen2(48, 5120, 13824, 40, 8, 152064),
    "32B": _qwen2(64, 5120, 27648, 40, 8, 152064),
    "72B": _qwen2(80, 8192, 29568, 64, 8, 152064),
}
_QWEN25_MATH = {
    "1.5B": _QWEN25["1.5B"],
    "7B": _QWEN25["7B"],
    "72B": _QWEN25["72B"],
}
_QWEN3 = {
    "0.6B": _tied(_qwen3(28, 1024, 3072, 16)),
    "1.7B": _tied(_qwen3(28, 2048, 6144, 16)),
    "4B": _tied(_qwen3(36, 2560, 9728, 32)),
    "8B": _qwen3(36, 4096, 12288, 32),
    "14B": _qwen3(40, 5120, 17408, 40),
    "32B": _qwen3(64, 5120, 25600, 64),
}
_GEMMA2 = {
    "2b": _gemma2(26, 2304, 9216, 8, 4, 256),
    "9b": _gemma2(42, 3584, 14336, 16, 8, 256),
    "27b": _gemma2(46, 4608, 36864, 32, 16, 128),
}
_GEMMA3_1B = DecoderShape(
    26,
    1152,
    6912,
    4,
    1,
    256,
    vocab_size=262144,
    tied_embeddings=True,
    query_key_norm=True,
    norms_per_layer=4,
    family="gemma3_text",
)

KNOWN_MODELS: Mapping[str, DecoderShape] = {
    "meta-llama/Llama-3.1-8B": _LLAMA_8B,
    "meta-llama/Llama-3.1-8B-Instruct": _LLAMA_8B,
    "meta-llama/Llama-3.1-70B": _LLAMA_70B,
    "meta-llama/Llama-3.1-70B-Instruct": _LLAMA_70B,
    "meta-llama/Llama-3.3-70B-Instruct": _LLAMA_70B,
    "meta-llama/Llama-3.1-405B": _LLAMA_405B,
    "meta-llama/Llama-3.1-405B-Instruct": _LLAMA_405B,
    "meta-llama/Llama-3.2-1B": _LLAMA_1B,
    "meta-llama/Llama-3.2-1B-Instruct": _LLAMA_1B,
    "meta-llama/Llama-3.2-3B": _LLAMA_3B,
    "meta-llama/Llama-3.2-3B-Instruct": _LLAMA_3B,
    "mistralai/Mistral-7B-v0.1": _MISTRAL_7B,
    "mistralai/Mistral-7B-Instruct-v0.2": _MISTRAL_7B,
    "mistralai/Mistral-7B-v0.3": _MISTRAL_7B_V3,
    "mistralai/Mistral-7B-Instruct-v0.3": _MISTRAL_7B_V3,
    **{f"Qwen/Qwen2.5-{size}": shape for size, shape in _QWEN25.items()},
    **{f"Qwen/Qwen2.5-{size}-Instruct": shape for size, shape in _QWEN25.items()},
    **{f"Qwen/Qwen2.5-Math-{size}": shape for size, shape in _QWEN25_MATH.items()},
    **{f"Qwen/Qwen3-{size}": shape for size, shape in _QWEN3.items()},
    **{f"Qwen/Qwen3-{size}-Base": shape for size, shape in _QWEN3.items() if size != "32B"},
    **{f"google/gemma-2-{size}": shape for size, shape in _GEMMA2.items()},
    **{f"google/gemma-2-{size}-it": shape for size, shape in _GEMMA2.items()},
    "google/gemma-3-1b-pt": _GEMMA3_1B,
    "google/gemma-3-1b-it": _GEMMA3_1B,
}

BUILTIN_MODELS: Mapping[BuiltinModel, DecoderShape] = {
    BuiltinModel.TINY_LLAMA: DecoderShape(2, 128, 512, 4, 4, 32, vocab_size=64, family="llama"),
}
