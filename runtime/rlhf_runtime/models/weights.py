"""Whether a folder's weights are those of the model that its config.json describes, by the headers
of safetensors files. Called before anything starts; engines look at all weights when they load."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rlhf_flow.errors import ShapeUnknown
from rlhf_flow.planning.model_config import shape_from_config
from rlhf_flow.planning.shapes import DecoderShape
from rlhf_runtime.errors import UnsupportedModel
from rlhf_runtime.models.errors import ModelIncomplete
from rlhf_runtime.models.folder import CONFIG_FILE, shapes_of

HEAD = "lm_head.weight"
_BASE = "model."
"""What the names begin with in files of a causal language model; those of its base lack it."""
_LAYER = re.compile(r"(?:model\.)?layers\.(\d+)\.")

Shapes = Mapping[str, Sequence[int]]


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
        UnsupportedModel: they are quantized, of another shape, or of more layers.
    """
    if quantization := config.get("quantization_config"):
        kind = quantization.get("quant_method") if isinstance(quantization, dict) else None
        raise UnsupportedModel(
            f"a model with quantized weights, which cannot be trained: got {kind or quantization} "
            f"in {folder / CONFIG_FILE}, allowed weights in float32, bfloat16 or float16; choose "
            "the model that it was made of"
        )
    try:
        shape = shape_from_config(config, str(folder / CONFIG_FILE), "")
    except ShapeUnknown:
        return
    found = shapes_of(folder)
    base = _BASE if any(name.startswith(_BASE) for name in found) else ""
    wanted = {f"{base}{name}": size for name, size in body(shape)}
    if has_language_head and not shape.tied_embeddings:
        wanted[HEAD] = (shape.vocab_size, shape.hidden_size)
    if not found.keys().isdisjoint(wanted):  # else they have other names
        _compare(folder, found, wanted, shape.num_layers)


def body(shape: DecoderShape) -> Iterator[tuple[str, tuple[int, ...]]]:
    """The weights below the output that every known family has, by their names in a base model, as
    torch's modules have them: rows of a matrix are outputs."""
    hidden, query, key = shape.hidden_size, shape.query_size, shape.key_value_size
    inner = shape.intermediate_size
    block = {
        "input_layernorm": (hidden,),
        "self_attn.q_proj": (query, hidden),
        "self_attn.k_proj": (key, hidden),
        "self_attn.v_proj": (key, hidden),
        "self_attn.o_proj": (hidden, query),
        "post_attention_layernorm": (hidden,),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
    }
    yield "embed_tokens.weight", (shape.vocab_size, hidden)
    for layer in range(shape.num_layers):
        for name, size in block.items():
            yield f"layers.{layer}.{name}.weight", size
    yield "norm.weight", (hidden,)


def _compare(folder: Path, found: Shapes, wanted: Shapes, num_layers: int) -> None:
    """Refuse weights that are not those that are wanted; for errors see `check_weights`."""
    if missing := [name for name in wanted if name not in found]:
        raise ModelIncomplete(
            f"a model without all its weights: got {folder} without {_some(missing)}; copy the "
            "whole folder, or save the model again with save_pretrained"
        )
    for name, size in wanted.items():
        if tuple(found[name]) != tuple(size):
            raise UnsupportedModel(
                f"weights of another shape than {CONFIG_FILE} says: got {name} of "
                f"{[*found[name]]} in {folder}, allowed {[*size]}; copy the whole folder of one "
                "model"
            )
    layers = ((name, _LAYER.match(name)) for name in found)
    if unknown := sorted(name for name, at in layers if at and int(at[1]) >= num_layers):
        raise UnsupportedModel(
            f"weights of more layers than {CONFIG_FILE} says: got {_some(unknown)} in {folder}, "
            f"allowed num_hidden_layers = {num_layers}; copy the whole folder of one model"
        )


def _some(names: Sequence[str]) -> str:
    more = len(names) - 3
    return ", ".join(names[:3]) + (f" and {more} more" if more > 0 else "")
