"""What a model's folder says of it, as transformers reads it, and the model without weights."""

from __future__ import annotations

from pathlib import Path

import torch
from huggingface_hub.errors import StrictDataclassError
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from rlhf_runtime.errors import UnsupportedModel


def read_config(folder: Path) -> PreTrainedConfig:
    """A folder's configuration.

    Raises:
        UnsupportedModel: transformers knows no such kind of model, or not with these settings.
    """
    try:
        config: PreTrainedConfig = AutoConfig.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError, StrictDataclassError) as error:
        first, *_ = str(error.__cause__ or error).splitlines()
        raise UnsupportedModel(
            f"transformers cannot read the model: got {folder}: {first} Choose a model of a kind "
            "that it knows, or correct config.json"
        ) from error
    return config


def outline(config: PreTrainedConfig, **options: object) -> PreTrainedModel:
    """A causal language model without its weights: all on torch's meta device.

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


def head_name(model: PreTrainedModel) -> str:
    """What the weight of a model's output layer is called."""
    head = model.get_output_embeddings()
    return next(f"{name}.weight" for name, each in model.named_modules() if each is head)
