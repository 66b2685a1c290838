"""Model folders in Hugging Face format: reads configs, and writes models file by file."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from safetensors.torch import save_file
from transformers import (
    MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    GenerationConfig,
    PreTrainedConfig,
    PreTrainedModel,
)

from rlhf_runtime.data.tokenizer import ends_with_template
from rlhf_runtime.engines.heads import make_scalar_config
from rlhf_runtime.errors import UnsupportedModel

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
GENERATION = "generation_config.json"
FILE_BYTES = 5 << 30
"""Maximum bytes of a file of weights, unless a single weight is larger; as transformers writes
them."""

Shapes = Mapping[str, tuple[int, ...]]
Gather = Callable[[Shapes], Mapping[str, torch.Tensor]]
"""Collects some full weights in the files' dtype; nothing on ranks that do not write."""


def read_config(folder: Path) -> PreTrainedConfig:
    """A folder's configuration.

    Raises:
        UnsupportedModel: transformers does not support this kind of model, or these settings.
    """
    try:
        config: PreTrainedConfig = AutoConfig.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError, StrictDataclassError) as error:
        first, *_ = str(error.__cause__ or error).splitlines()
        raise UnsupportedModel(
            f"transformers cannot read the model: got {folder}: {first} Choose a model of a kind "
            "that it supports, or correct config.json"
        ) from error
    return config


def meta_model(config: PreTrainedConfig, **options: object) -> PreTrainedModel:
    """A causal language model without weights, on torch's meta device.

    Args:
        config: of the model.
        options: of transformers' `from_config`.

    Raises:
        UnsupportedModel: transformers has no causal language model of this kind.
    """
    try:
        with torch.device("meta"):
            model: PreTrainedModel = AutoModelForCausalLM.from_config(config, **options)
    except ValueError as error:
        first, *_ = str(error).splitlines()
        raise UnsupportedModel(
            f"not a causal language model: got model_type {config.model_type!r}: {first} Choose a "
            "decoder"
        ) from error
    return model


def output_weight_name(model: PreTrainedModel) -> str:
    """Name of the weight of a model's output layer."""
    head = model.get_output_embeddings()
    return next(f"{name}.weight" for name, module in model.named_modules() if module is head)


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
    """Write all weights, and an index if there are several files.

    Args:
        shapes: of all weights, by name.
        gather: called for one file after the other, also on ranks that do not write.
        folder: an existing one. Files of the same names are overwritten.
        dtype: of the weights in the files.
        saved_names: names in files, for weights with another name there.
        writes: True if this rank writes.
        file_bytes: maximum size of a file.
    """
    # File by file, so that no rank ever has the full model in memory.
    groups = list(_by_file(shapes, file_bytes // dtype.itemsize))
    files = _file_names(len(groups))
    failure: Exception | None = None
    for file, own in zip(files, groups, strict=True):
        weights = gather(own)
        try:
            _write_file(folder / file if writes else None, weights, saved_names)
        except (OSError, SafetensorError) as error:
            # Other ranks wait in the remaining collectives; then the model can be written again.
            failure = error.with_traceback(None)  # the traceback holds the weights
        del weights
    if failure is not None:
        raise failure
    if writes and len(files) > 1:
        file_by_weight = {
            saved_names.get(name, name): file
            for file, own in zip(files, groups, strict=True)
            for name in own
        }
        _write_index(folder, shapes, file_by_weight, dtype)


def _write_file(
    file: Path | None, weights: Mapping[str, torch.Tensor], saved_names: Mapping[str, str]
) -> None:
    # A function of its own, so that its references end and the weights are freed on return.
    if file is not None:
        named = {saved_names.get(name, name): tensor for name, tensor in weights.items()}
        save_file(named, file, metadata={"format": "pt"})


def write_configs(
    config: Any, source: Path, folder: Path, dtype: torch.dtype, *, is_scalar: bool
) -> None:
    """Write `config.json`, and for a generating model `generation_config.json`.

    A model with a scalar head becomes a sequence classifier of one label, as reward models are. The
    source's `generation_config.json` is copied as it is, unless the source's chat template adds an
    end token: then it lists all end tokens.

    Args:
        config: of the model, of transformers; not modified.
        source: the folder that training began with.
        folder: an existing one.
        dtype: of the weights in the files.
        is_scalar: True if a scalar head replaces the output projection.

    Raises:
        UnsupportedModel: transformers has no sequence classifier of its family.
    """
    # Values that transformers reads but refuses to write must not end a job that has trained.
    generation = GenerationConfig.from_model_config(config)
    config = without_generation_settings(config)
    config.dtype = dtype
    config.use_cache = True  # engines disable it for training, generation needs it
    if is_scalar:
        make_scalar_config(config)
        config.num_labels = 1
        config.architectures = [_classifier_class(config)]
        config.save_pretrained(folder)
        return  # it does not generate
    config.save_pretrained(folder)
    if (source / GENERATION).is_file():
        shutil.copyfile(source / GENERATION, folder / GENERATION)
    else:
        generation.to_json_file(folder / GENERATION)
    # Programs that generate with the saved model read no end token from its template.
    if ends := ends_with_template(source):
        settings = json.loads((folder / GENERATION).read_text(encoding="utf-8"))
        text = json.dumps({**settings, "eos_token_id": ends}, indent=2) + "\n"
        (folder / GENERATION).write_text(text, encoding="utf-8")


def without_generation_settings(config: Any) -> Any:
    """Return a copy of a config of transformers without settings of sampling."""
    config = deepcopy(config)
    for name in config._get_generation_parameters():
        delattr(config, name)
    return config


def _classifier_class(config: Any) -> str:
    if type(config) not in MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING:
        raise UnsupportedModel(
            "transformers has no sequence classifier of this family, as which a model with a "
            f"scalar head is saved: got model_type {config.model_type!r}; choose a model of another"
        )
    return str(MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING[type(config)].__name__)


def _by_file(shapes: Shapes, max_elements: int) -> Iterator[Shapes]:
    """Groups of consecutive weights that fit into a file."""
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
    folder: Path, shapes: Shapes, file_by_weight: Mapping[str, str], dtype: torch.dtype
) -> None:
    elements = sum(map(math.prod, shapes.values()))
    index = {
        "metadata": {"total_parameters": elements, "total_size": elements * dtype.itemsize},
        "weight_map": dict(sorted(file_by_weight.items())),
    }
    (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
