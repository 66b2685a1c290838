"""A model's folder in Hugging Face format, written file by file: no whole model is held for it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING, GenerationConfig

from rlhf_runtime.engines.heads import as_scalar
from rlhf_runtime.errors import UnsupportedModel

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
FILE_BYTES = 5 << 30
"""Size of a file of weights, as transformers writes them; more only where one weight is larger."""

Shapes = Mapping[str, tuple[int, ...]]
Gather = Callable[[Shapes], Mapping[str, torch.Tensor]]
"""Gives some weights whole, in the files' dtype, or nothing where this rank does not write."""


def write_weights(
    shapes: Shapes,
    gather: Gather,
    folder: Path,
    dtype: torch.dtype,
    saved_names: Mapping[str, str],
    *,
    writes: bool = True,
    file_bytes: int = FILE_BYTES,
) -> None:
    """Write all weights, and an index where there are several files.

    Args:
        shapes: of all weights, by name.
        gather: called for one file after the other, on ranks that do not write, too.
        folder: is there. What it holds under the same names is overwritten.
        dtype: of the weights in the files.
        saved_names: what weights are called in files, for those that have another name there.
        writes: whether this rank writes.
        file_bytes: what is held at a time.
    """
    groups = list(_by_file(shapes, file_bytes // dtype.itemsize))
    files = _file_names(len(groups))
    for file, own in zip(files, groups, strict=True):
        _write_file(folder / file if writes else None, gather(own), saved_names)
    if writes and len(files) > 1:
        places = {
            saved_names.get(name, name): file
            for file, own in zip(files, groups, strict=True)
            for name in own
        }
        _write_index(folder, shapes, places, dtype)


def _write_file(
    file: Path | None, weights: Mapping[str, torch.Tensor], saved_names: Mapping[str, str]
) -> None:
    """Write one file, on the rank that does; they are given back when this returns."""
    if file is not None:
        named = {saved_names.get(name, name): tensor for name, tensor in weights.items()}
        save_file(named, file, metadata={"format": "pt"})


def write_configs(
    config: Any, source: Path, folder: Path, dtype: torch.dtype, *, is_scalar: bool
) -> None:
    """Write `config.json`, and for a model that generates `generation_config.json`.

    One with a scalar head becomes a sequence classifier of one label, as reward models are.

    Args:
        config: of the model, of transformers; it is left as it is.
        source: the folder that it was trained from.
        folder: is there.
        dtype: of the weights in the files.
        is_scalar: whether a scalar head is in the place of the output projection.

    Raises:
        UnsupportedModel: transformers has no sequence classifier of its family.
    """
    config = deepcopy(config)
    config.dtype = dtype
    config.use_cache = True
    if is_scalar:
        as_scalar(config)
        config.num_labels = 1
        config.architectures = [_classifier_of(config)]
        config.save_pretrained(folder)
        return  # it does not generate
    config.save_pretrained(folder)
    if (source / "generation_config.json").is_file():
        generation = GenerationConfig.from_pretrained(source, local_files_only=True)
    else:
        generation = GenerationConfig.from_model_config(config)
    generation.save_pretrained(folder)


def _classifier_of(config: Any) -> str:
    if type(config) not in MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING:
        raise UnsupportedModel(
            "transformers has no sequence classifier of this family, as which a model with a "
            f"scalar head is saved: got model_type {config.model_type!r}; choose a model of another"
        )
    return str(MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING[type(config)].__name__)


def _by_file(shapes: Shapes, max_elements: int) -> Iterator[Shapes]:
    """Neighbouring weights, as many as fit into a file."""
    group: dict[str, tuple[int, ...]] = {}
    elements = 0
    for name, shape in shapes.items():
        if group and elements + math.prod(shape) > max_elements:
            yield group
            group, elements = {}, 0
        group[name] = shape
        elements += math.prod(shape)
    yield group


def _file_names(count: int) -> list[str]:
    if count == 1:
        return [WEIGHTS]
    return [f"model-{1 + number:05d}-of-{count:05d}.safetensors" for number in range(count)]


def _write_index(
    folder: Path, shapes: Shapes, places: Mapping[str, str], dtype: torch.dtype
) -> None:
    elements = sum(map(math.prod, shapes.values()))
    index = {
        "metadata": {"total_parameters": elements, "total_size": elements * dtype.itemsize},
        "weight_map": dict(sorted(places.items())),
    }
    (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
