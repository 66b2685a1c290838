"""Whether a folder's weights are those of the model that its config.json describes, by the headers
of safetensors files: no weight is read."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from rlhf_flow.errors import ShapeUnknown
from rlhf_flow.planning.held_weights import EMBEDDING, LAYER, OUTPUT, weight_shapes
from rlhf_flow.planning.model_config import shape_from_config
from rlhf_runtime.errors import UnsupportedModel
from rlhf_runtime.models.errors import ModelIncomplete
from rlhf_runtime.models.folder import CONFIG_FILE, read_object, safetensors_files, shapes_of

Shapes = Mapping[str, tuple[int, ...]]
"""Full shapes of tensors, by name."""
BASE, HEADS = "model.", (OUTPUT, "score.weight")
"""What names begin with in a model with a head; what no base model has."""
COMPUTED = ".rotary_emb.inv_freq"
"""What older files name so is computed from config.json."""


def check_weights(folder: Path, *, needs_output: bool) -> None:
    """Compare the weights of a folder with those of the model that its config.json describes.

    Nothing is said of kinds of models whose layers the planner does not know, of quantized ones,
    and of weights in other files than safetensors.

    Args:
        folder: whole, as `require_complete` checks.
        needs_output: whether its output over the vocabulary is used, if it has one: a classifier
            has another.

    Raises:
        ModelIncomplete: a weight is missing, or a file cannot be read.
        UnsupportedModel: one of another shape, or of a layer or a kind that the model does not
            have.
    """
    config = read_object(folder / CONFIG_FILE)
    given = dict(_named(folder))
    if not given or config.get("quantization_config") is not None:
        return
    try:
        wanted = weight_shapes(shape_from_config(config, CONFIG_FILE, ""))
    except ShapeUnknown:
        return
    if not needs_output or _is_classifier(config):
        wanted.pop(OUTPUT, None)
        given.pop(OUTPUT, None)
    elif OUTPUT not in wanted and OUTPUT in given:  # tied: files may hold it twice, or this one
        wanted[OUTPUT] = wanted[EMBEDDING]
        if EMBEDDING not in given:
            del wanted[EMBEDDING]
    refuse_other_weights(folder, given, wanted, _has_biases(config))


def refuse_other_weights(folder: Path, given: Shapes, wanted: Shapes, biases: bool = False) -> None:
    """Compare what files hold with what a model consists of; what lies outside of layers may be
    more.

    Args:
        folder: of the files.
        given: their tensors.
        wanted: the model's.
        biases: whether its layers may have some beside these.

    Raises:
        ModelIncomplete, UnsupportedModel: as of `check_weights`, with the first of them.
    """
    if missing := [name for name in wanted if name not in given]:
        raise ModelIncomplete(
            f"a model without all its weights: got {folder} without {missing[0]} of "
            f"{[*wanted[missing[0]]]}{_more(missing)}; copy the whole folder, or save the model "
            "again with save_pretrained"
        )
    if differing := [name for name, shape in wanted.items() if given[name] != shape]:
        name = differing[0]
        raise UnsupportedModel(
            f"weights of another shape than {CONFIG_FILE} says: got {name} of {[*given[name]]} in "
            f"{folder}, allowed {[*wanted[name]]}{_more(differing)}; copy {CONFIG_FILE} and "
            "weights of one model"
        )
    unknown = sorted(
        name
        for name in given.keys() - wanted.keys()
        if ".layers." in name
        and not name.endswith(COMPUTED)
        and not (biases and name.endswith(".bias") and _layer(name) in set(map(_layer, wanted)))
    )
    if unknown:
        raise UnsupportedModel(
            f"weights that no layer of the model has: got {unknown[0]}{_more(unknown)} in "
            f"{folder}, allowed those of the model that {CONFIG_FILE} describes; copy "
            f"{CONFIG_FILE} and weights of one model"
        )


def _named(folder: Path) -> Iterator[tuple[str, tuple[int, ...]]]:
    """The tensors of a folder, named as in a model with a head: of a base model alone files leave
    its name out."""
    shapes = {n: s for file in safetensors_files(folder) for n, s in shapes_of(file).items()}
    is_base = not any(name.startswith(BASE) for name in shapes)
    for name, shape in shapes.items():
        yield (f"{BASE}{name}" if is_base and name not in HEADS else name), shape


def _is_classifier(config: Mapping[str, Any]) -> bool:
    named = config.get("architectures") or ()
    return any(str(name).endswith("ForSequenceClassification") for name in named)


def _has_biases(config: Mapping[str, Any]) -> bool:
    return bool(config.get("attention_bias") or config.get("mlp_bias"))


def _layer(name: str) -> str:
    """The number of a weight's layer; empty: it is in none."""
    return name.removeprefix(LAYER).partition(".")[0] if name.startswith(LAYER) else ""


def _more(names: Collection[str]) -> str:
    return f" and {len(names) - 1} more" if len(names) > 1 else ""
