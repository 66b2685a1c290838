from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from transformers import AutoConfig

from rlhf_api.errors import RlhfError
from rlhf_flow.planning.model_config import MODEL_TYPES, shape_from_config
from rlhf_runtime.engines.configuration import outline
from rlhf_runtime.errors import UnsupportedModel
from rlhf_runtime.models.errors import ModelIncomplete
from rlhf_runtime.models.folder import read_object
from rlhf_runtime.models.tiny_llama import write_tiny_llama
from rlhf_runtime.models.weights import body, check_weights

SIZES = {
    "num_hidden_layers": 2,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 40,
    "pad_token_id": 0,
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_tiny_llama(tmp_path / "tiny", seed=0)
    return tmp_path / "tiny"


def check(folder: Path, has_language_head: bool = True) -> None:
    config = read_object(folder / "config.json")
    check_weights(folder, config, has_language_head=has_language_head)


def change_config(folder: Path, **changes: Any) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def change_weights(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors")


@pytest.mark.parametrize("family", sorted(MODEL_TYPES))
def test_names_and_shapes_are_those_of_transformers(family: str) -> None:
    model = outline(AutoConfig.for_model(family, **SIZES))
    shape = shape_from_config({"model_type": family, **SIZES}, "here", "")
    sizes = {name: tuple(each.shape) for name, each in model.named_parameters()}
    assert {f"model.{name}": size for name, size in body(shape)}.items() <= sizes.items()


def test_a_llama_has_nothing_else_below_its_output(folder: Path) -> None:
    shape = shape_from_config(read_object(folder / "config.json"), "here", "")
    counted = sum(math.prod(size) for _, size in body(shape))
    assert counted + shape.head_parameters == shape.num_parameters


def test_a_whole_model_is_taken(folder: Path) -> None:
    check(folder)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"num_hidden_layers": 3}, ModelIncomplete, r"without model\.layers\.2.* and 6 more; copy"),
        ({"num_hidden_layers": 1}, UnsupportedModel, r"more layers .*\.layers\.1\..* 6 more"),
        ({"hidden_size": 256}, UnsupportedModel, r"tokens\.weight of \[64, 128\].* \[64, 256\]"),
        ({"num_attention_heads": 5}, UnsupportedModel, r"q_proj.* of \[128, 128\].*\[160, 128\]"),
        ({"num_key_value_heads": 3}, UnsupportedModel, r"k_proj.*allowed \[96, 128\]"),
        ({"vocab_size": 99}, UnsupportedModel, r"allowed \[99, 128\]"),
        ({"quantization_config": {"quant_method": "awq"}}, UnsupportedModel, "quantized.*got awq"),
    ],
)
def test_a_config_of_another_model_is_refused(
    folder: Path, changes: dict[str, Any], error: type[RlhfError], message: str
) -> None:
    change_config(folder, **changes)
    with pytest.raises(error, match=message):
        check(folder)


def test_a_weight_that_is_not_there_is_named(folder: Path) -> None:
    change_weights(folder, lambda weights: weights.pop("model.layers.1.input_layernorm.weight"))
    with pytest.raises(ModelIncomplete, match=r"without model\.layers\.1\.input_layernorm"):
        check(folder)


def test_only_roles_that_predict_tokens_need_an_output(folder: Path) -> None:
    change_weights(folder, lambda weights: weights.pop("lm_head.weight"))
    check(folder, has_language_head=False)
    with pytest.raises(ModelIncomplete, match=r"without lm_head\.weight"):
        check(folder)
    change_config(folder, tie_word_embeddings=True)
    check(folder)


def test_a_base_model_has_names_without_the_beginning(folder: Path) -> None:
    def rename(weights: dict[str, Any]) -> None:
        for name in [name for name in weights if name.startswith("model.")]:
            weights[name.removeprefix("model.")] = weights.pop(name)

    change_weights(folder, rename)
    check(folder)


def test_what_is_not_known_is_left_to_engines(folder: Path) -> None:
    change_config(folder, model_type="mamba")
    check(folder)
    change_config(folder, model_type="llama")
    save_file({"other.weight": np.zeros(4, np.float32)}, folder / "model.safetensors")
    check(folder)
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    check(folder)
