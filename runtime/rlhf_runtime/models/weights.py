"""Compares the weights in a folder with the model that its config.json describes.

Reads only the headers of safetensors files. Called before anything starts, and by engines on
loading.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlhf_flow.errors import ShapeUnknown
from rlhf_runtime.errors import UnsupportedModel
from rlhf_runtime.models.errors import ModelIncomplete
from rlhf_runtime.models.folder import CONFIG_FILE, tensor_shapes
from rlhf_sizing.config import shape_from_config
from rlhf_sizing.weights import EMBEDDING, LAYER, OUTPUT, weight_shapes

_BASE, _HEADS = "model.", (OUTPUT, "score.weight")
"""Prefix of names in a model with a head; names of heads, which no base model has."""
_COMPUTED = ".rotary_emb.inv_freq"
"""Suffix of buffers in older files, which are computed from config.json."""

Shapes = Mapping[str, tuple[int, ...]]
"""Full shapes of tensors, by name."""


def check_weights(folder: Path, config: Mapping[str, Any], *, has_language_head: bool) -> None:
    """Compare the tensors in a model's files with its config.

    Engines check other formats than safetensors, and models of unregistered families.

    Args:
        folder: of the model.
        config: its config.json.
        has_language_head: True if the model's output over the vocabulary is used.

    Raises:
        ModelIncomplete: weights are missing, or a file is damaged.
        UnsupportedModel: weights are quantized, of another shape, or of other layers.
    """
    if quantization := config.get("quantization_config"):
        kind = quantization.get("quant_method") if isinstance(quantization, dict) else None
        raise UnsupportedModel(
            f"a model with quantized weights, which cannot be trained: got {kind or quantization} "
            f"in {folder / CONFIG_FILE}, allowed weights in float32, bfloat16 or float16; choose "
            "the model that it was quantized from"
        )
    try:
        expected = weight_shapes(shape_from_config(config, str(folder / CONFIG_FILE), ""))
    except ShapeUnknown:
        return  # an unregistered family, which engines check on loading
    actual = _with_base_prefix(tensor_shapes(folder))
    if actual.keys().isdisjoint(expected):
        return  # another naming scheme, or files of another format
    if not has_language_head:
        expected.pop(OUTPUT, None)
        actual.pop(OUTPUT, None)
    elif OUTPUT not in expected and OUTPUT in actual:
        # Tied: files may have the matrix twice, or only under the output's name.
        expected[OUTPUT] = expected[EMBEDDING]
        if EMBEDDING not in actual:
            del expected[EMBEDDING]
    has_biases = bool(config.get("attention_bias") or config.get("mlp_bias"))
    compare_weights(folder, actual, expected, has_biases)


def compare_weights(
    folder: Path, actual: Shapes, expected: Shapes, has_biases: bool = False
) -> None:
    """Refuse missing, differing and unknown weights; outside of layers there may be more.

    Args:
        folder: of the files.
        actual: tensors in the files.
        expected: tensors of the model.
        has_biases: True if its layers may have biases that `expected` does not list.

    Raises:
        ModelIncomplete, UnsupportedModel: as `check_weights`, with the first difference.
    """
    if missing := [name for name in expected if name not in actual]:
        raise ModelIncomplete(
            f"a model without all its weights: got {folder} without {missing[0]} of "
            f"{[*expected[missing[0]]]}{_more(missing)}; copy the complete folder, or save the "
            "model again with save_pretrained"
        )
    if differing := [name for name, shape in expected.items() if actual[name] != shape]:
        name = differing[0]
        raise UnsupportedModel(
            f"weights of another shape than {CONFIG_FILE} says: got {name} of {[*actual[name]]} in "
            f"{folder}, allowed {[*expected[name]]}{_more(differing)}; copy {CONFIG_FILE} and "
            "weights of one model"
        )
    # Outside of layers files may have more, such as buffers or a second head. An unknown weight in
    # a layer means that another model would be computed.
    layers = {_layer(name) for name in expected}
    unknown = sorted(
        name
        for name in actual.keys() - expected.keys()
        if ".layers." in name
        and not name.endswith(_COMPUTED)
        and not (has_biases and name.endswith(".bias") and _layer(name) in layers)
    )
    if unknown:
        raise UnsupportedModel(
            f"weights that no layer of the model has: got {unknown[0]}{_more(unknown)} in "
            f"{folder}, allowed those of the model that {CONFIG_FILE} describes; copy "
            f"{CONFIG_FILE} and weights of one model"
        )


def _with_base_prefix(shapes: Shapes) -> dict[str, tuple[int, ...]]:
    """Tensors under their names in a model with a head."""
    # Files of a base model alone omit the prefix.
    if any(name.startswith(_BASE) for name in shapes):
        return dict(shapes)
    return {n if n in _HEADS else f"{_BASE}{n}": shape for n, shape in shapes.items()}


def _layer(name: str) -> str:
    """The number of a weight's layer; empty outside of layers."""
    return name.removeprefix(LAYER).partition(".")[0] if name.startswith(LAYER) else ""


def _more(names: Sequence[str]) -> str:
    return f" and {len(names) - 1} more" if len(names) > 1 else ""
