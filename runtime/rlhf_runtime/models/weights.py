"""Whether a folder's weights are those of the model that its config.json describes, by the headers
of safetensors files: no weight is read. Called before anything starts, and by engines that load."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlhf_flow.errors import ShapeUnknown
from rlhf_runtime.errors import UnsupportedModel
from rlhf_runtime.models.errors import ModelIncomplete
from rlhf_runtime.models.folder import CONFIG_FILE, shapes_of
from rlhf_sizing.config import shape_from_config
from rlhf_sizing.weights import EMBEDDING, LAYER, OUTPUT, weight_shapes

_BASE, _HEADS = "model.", (OUTPUT, "score.weight")
"""What names begin with in a model with a head; what no base model has."""
_COMPUTED = ".rotary_emb.inv_freq"
"""What older files name so is computed from config.json."""

Shapes = Mapping[str, tuple[int, ...]]
"""Full shapes of tensors, by name."""


def check_weights(folder: Path, config: Mapping[str, Any], *, has_language_head: bool) -> None:
    """Compare what a model's files hold with what its config says.

    Files in other formats than safetensors, and models of families that are not known here, are
    left to the engines.

    Args:
        folder: of the model.
        config: its config.json.
        has_language_head: whether the model's output over the vocabulary is used.

    Raises:
        ModelIncomplete: weights are missing, or a file is damaged.
        UnsupportedModel: they are quantized, of another shape, or of other layers.
    """
    if quantization := config.get("quantization_config"):
        kind = quantization.get("quant_method") if isinstance(quantization, dict) else None
        raise UnsupportedModel(
            f"a model with quantized weights, which cannot be trained: got {kind or quantization} "
            f"in {folder / CONFIG_FILE}, allowed weights in float32, bfloat16 or float16; choose "
            "the model that it was made of"
        )
    try:
        wanted = weight_shapes(shape_from_config(config, str(folder / CONFIG_FILE), ""))
    except ShapeUnknown:
        return
    found = _named(shapes_of(folder))
    if found.keys().isdisjoint(wanted):
        return  # they have other names
    if not has_language_head:
        wanted.pop(OUTPUT, None)
        found.pop(OUTPUT, None)
    elif OUTPUT not in wanted and OUTPUT in found:  # tied: files may hold it twice, or this one
        wanted[OUTPUT] = wanted[EMBEDDING]
        if EMBEDDING not in found:
            del wanted[EMBEDDING]
    has_biases = bool(config.get("attention_bias") or config.get("mlp_bias"))
    refuse_others(folder, found, wanted, has_biases)


def refuse_others(folder: Path, found: Shapes, wanted: Shapes, has_biases: bool = False) -> None:
    """Refuse weights that are not those of a model; outside of its layers there may be more.

    Args:
        folder: of the files.
        found: their tensors.
        wanted: the model's.
        has_biases: whether its layers may have some beside these.

    Raises:
        ModelIncomplete, UnsupportedModel: as of `check_weights`, with the first of them.
    """
    if missing := [name for name in wanted if name not in found]:
        raise ModelIncomplete(
            f"a model without all its weights: got {folder} without {missing[0]} of "
            f"{[*wanted[missing[0]]]}{_more(missing)}; copy the whole folder, or save the model "
            "again with save_pretrained"
        )
    if differing := [name for name, shape in wanted.items() if found[name] != shape]:
        name = differing[0]
        raise UnsupportedModel(
            f"weights of another shape than {CONFIG_FILE} says: got {name} of {[*found[name]]} in "
            f"{folder}, allowed {[*wanted[name]]}{_more(differing)}; copy {CONFIG_FILE} and "
            "weights of one model"
        )
    layers = {_layer(name) for name in wanted}
    unknown = sorted(
        name
        for name in found.keys() - wanted.keys()
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


def _named(shapes: Shapes) -> dict[str, tuple[int, ...]]:
    """Tensors named as in a model with a head: of a base model alone files leave its name out."""
    if any(name.startswith(_BASE) for name in shapes):
        return dict(shapes)
    return {n if n in _HEADS else f"{_BASE}{n}": shape for n, shape in shapes.items()}


def _layer(name: str) -> str:
    """The number of a weight's layer; empty: it is in none."""
    return name.removeprefix(LAYER).partition(".")[0] if name.startswith(LAYER) else ""


def _more(names: Sequence[str]) -> str:
    return f" and {len(names) - 1} more" if len(names) > 1 else ""
