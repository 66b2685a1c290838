"""Whose weights a folder has, by the headers of its files."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from rlhf_api.errors import RlhfError
from rlhf_runtime.errors import UnsupportedModel
from rlhf_runtime.models.errors import ModelIncomplete
from rlhf_runtime.models.folder import read_object
from rlhf_runtime.models.weights import check_weights
from rlhf_sizing.config import shape_from_config
from rlhf_sizing.weights import EMBEDDING, OUTPUT, weight_shapes

CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "hidden_size": 8,
    "intermediate_size": 12,
    "num_attention_heads": 2,
    "vocab_size": 10,
}
QUERY = "model.layers.0.self_attn.q_proj.weight"
Tensors = dict[str, tuple[int, ...]]
Change = Callable[[Tensors], Tensors]


def folder_of(place: Path, change: Change, **config: Any) -> Path:
    """A model's folder, whose weights, of a whole Llama, are changed, and whose config is."""
    shapes = change(weight_shapes(shape_from_config(CONFIG, "", "")))
    save_file({n: np.zeros(s, np.float16) for n, s in shapes.items()}, place / "model.safetensors")
    (place / "config.json").write_text(json.dumps(CONFIG | config))
    return place


def same(tensors: Tensors) -> Tensors:
    return tensors


def without(*names: str) -> Change:
    return lambda tensors: {name: tensors[name] for name in tensors if name not in names}


def with_more(**more: tuple[int, ...]) -> Change:
    return lambda tensors: tensors | {n.replace("__", "."): s for n, s in more.items()}


def of_base(tensors: Tensors) -> Tensors:
    """As a model without a head is saved."""
    return {n.removeprefix("model."): shape for n, shape in tensors.items() if n != OUTPUT}


def check(folder: Path, has_language_head: bool) -> None:
    config = read_object(folder / "config.json")
    check_weights(folder, config, has_language_head=has_language_head)


QUANTIZED = {"quantization_config": {"quant_method": "awq"}}
TIED = {"tie_word_embeddings": True}
BIASES = with_more(model__layers__1__self_attn__q_proj__bias=(8,))
COMPUTED = with_more(model__layers__1__self_attn__rotary_emb__inv_freq=(2,))


@pytest.mark.parametrize(
    ("change", "config", "has_language_head"),
    [
        (same, {}, True),
        (same, TIED, True),
        (without(OUTPUT), TIED, True),
        (without(EMBEDDING), TIED, True),
        (without(OUTPUT), {}, False),
        (with_more(lm_head__weight=(1, 8)), {}, False),
        (of_base, {}, False),
        (BIASES, {"attention_bias": True}, True),
        (COMPUTED, {}, True),
        (with_more(vision__weight=(3,)), {}, True),
        (without(QUERY), {"model_type": "granite"}, True),
        (lambda tensors: {"other.weight": (4,)}, {}, True),
    ],
)
def test_a_models_own_weights_are_taken(
    tmp_path: Path, change: Change, config: dict[str, Any], has_language_head: bool
) -> None:
    check(folder_of(tmp_path, change, **config), has_language_head)


@pytest.mark.parametrize(
    ("change", "config", "error", "says"),
    [
        (without(QUERY), {}, ModelIncomplete, f"without {QUERY} of [8, 8]; copy the complete"),
        (without(OUTPUT), {}, ModelIncomplete, f"without {OUTPUT} of [10, 8]; copy"),
        (without(OUTPUT, EMBEDDING), TIED, ModelIncomplete, f"without {EMBEDDING} of [10, 8]; c"),
        (of_base, {}, ModelIncomplete, f"without {OUTPUT}"),
        (same, {"vocab_size": 11}, UnsupportedModel, "of [10, 8] in "),
        (with_more(lm_head__weight=(9, 8)), TIED, UnsupportedModel, f"{OUTPUT} of [9, 8] in "),
        (same, {"num_key_value_heads": 1}, UnsupportedModel, "allowed [4, 8] and 3 more; copy"),
        (same, {"num_hidden_layers": 1}, UnsupportedModel, "got model.layers.1.input_layernorm"),
        (same, {"num_hidden_layers": 3}, ModelIncomplete, "without model.layers.2.self_attn.q_"),
        (same, {"model_type": "qwen2"}, ModelIncomplete, "q_proj.bias of [8] and 5 more; copy"),
        (same, {"num_attention_heads": 4, "head_dim": 8}, UnsupportedModel, "allowed [32, 8] and "),
        (same, QUANTIZED, UnsupportedModel, "a model with quantized weights, which cannot be"),
        (BIASES, {}, UnsupportedModel, "got model.layers.1.self_attn.q_proj.bias in "),
    ],
)
def test_those_of_another_model_are_told(
    tmp_path: Path, change: Change, config: dict[str, Any], error: type[RlhfError], says: str
) -> None:
    folder = folder_of(tmp_path, change, **config)
    with pytest.raises(error) as caught:
        check(folder, True)
    assert says in str(caught.value) and str(folder) in str(caught.value)


def test_of_files_in_another_format_nothing_is_said(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    check(tmp_path, True)
